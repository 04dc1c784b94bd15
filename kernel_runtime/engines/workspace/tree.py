"""Manifests: one object per directory, content-addressed, so unchanged directories are free.

A directory is written as JSON, {"e": [row, …]}, rows sorted by name. A large directory is cut
into pages at names that a hash picks (one in 64 on average) and written as {"p": [page, …]}:
a change in a directory of 50,000 files then costs one page and the list of pages, not a new
manifest. Equal directories give equal objects, whatever way they came about.

Kept: what `Entry` has. Lost: atime, ctime, inode numbers.
"""

from __future__ import annotations

import bisect
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, cast

from kernel_runtime.engines.workspace.model import Chunk, Entry, Kind
from kernel_runtime.engines.workspace.names import to_bytes, to_text
from kernel_runtime.later import dataclass
from kernel_runtime.store.blobs import BlobStore, Digest

_PAGE_MASK: Final = 63

Pages = dict[tuple[bytes, bytes], Digest]
"""Pages of a directory as written last: (first name, first name of the next) to its blob."""


class TreeDamaged(ValueError):
    """A manifest that was read is not one that this module writes."""


def make_entry(
    name: bytes,
    kind: Kind,
    mode: int,
    uid: int,
    gid: int,
    mtime_ns: int,
    *,
    size: int = 0,
    chunks: tuple[Chunk, ...] = (),
    target: bytes = b"",
    tree: str = "",
    link: str = "",
    held: str = "",
    xattrs: tuple[tuple[str, bytes], ...] = (),
) -> Entry:
    """An Entry; what a kind does not have stays empty."""
    return Entry(
        name, kind, mode, uid, gid, mtime_ns, size, chunks, target, tree, link, held, xattrs
    )


def write_tree(
    store: BlobStore,
    names: Iterable[bytes],
    entry: Callable[[bytes], Entry],
    changed: Iterable[bytes] | None = None,
    old: Pages | None = None,
) -> tuple[Digest, Pages]:
    """Store one directory. Returns its manifest's name and the pages, for the next time.

    changed: names that may differ from when old was written; None: all.
    """
    ordered = sorted(names)
    starts = [0, *(i for i, name in enumerate(ordered) if i and _starts_page(name))]
    if len(starts) == 1:
        return store.put(_encode({"e": [encode_row(entry(name)) for name in ordered]})), {}
    firsts = [b"", *(ordered[i] for i in starts[1:])]
    dirty = None
    if changed is not None and old:
        dirty = {bisect.bisect_right(firsts, name) - 1 for name in changed}
    pages: Pages = {}
    for number, begin in enumerate(starts):
        last = number + 1 == len(starts)
        key = (firsts[number], b"" if last else firsts[number + 1])
        known = old.get(key) if old and dirty is not None and number not in dirty else None
        if known is None:
            end = len(ordered) if last else starts[number + 1]
            rows = [encode_row(entry(name)) for name in ordered[begin:end]]
            known = store.put(_encode({"e": rows}))
        pages[key] = known
    return store.put(_encode({"p": list(pages.values())})), pages


def read_tree(store: BlobStore, digest: str) -> list[Entry]:
    """The entries of a directory, sorted by name. Raises BlobError or TreeDamaged."""
    return [entry for page in _rows(store, digest) for entry in page]


def references(store: BlobStore, digest: str) -> tuple[list[str], list[str]]:
    """What one manifest or page names: other manifests, and blobs of content.

    Looks at no more of a row than it needs: collecting garbage reads every manifest. Raises
    BlobError, TreeDamaged.
    """
    value = _decode(store, digest)
    trees: list[str] = list(value.get("p", []))
    blobs: list[str] = []
    try:
        for row in value.get("e", []):
            if row[1] == "d":
                trees.append(row[6])
            elif row[1] == "f":
                content = row[7]
                blobs += [content] if isinstance(content, str) else [one[2] for one in content]
    except (IndexError, TypeError) as cause:
        raise TreeDamaged(f"bad row in manifest {digest[:12]}") from cause
    return trees, blobs


def encode_row(entry: Entry) -> list[Any]:
    """One entry as JSON data."""
    row: list[Any] = [
        to_text(entry.name), entry.kind, entry.mode, entry.uid, entry.gid, entry.mtime_ns,
    ]  # fmt: skip
    if entry.kind == "f":
        chunks = entry.chunks
        dense = len(chunks) == 1 and chunks[0][:2] == (0, entry.size)
        row += [entry.size, chunks[0][2] if dense else [list(chunk) for chunk in chunks]]
    elif entry.kind == "d":
        row.append(entry.tree)
    elif entry.kind == "l":
        row.append(to_text(entry.target))
    more: dict[str, Any] = {}
    if entry.link:
        more["l"] = entry.link
    if entry.held:
        more["h"] = entry.held
    if entry.xattrs:
        more["x"] = [[name, value.hex()] for name, value in entry.xattrs]
    if more:
        row.append(more)
    return row


def decode_row(row: list[Any]) -> Entry:
    """The inverse of encode_row. Raises TreeDamaged."""
    try:
        name, kind, mode, uid, gid, mtime_ns, *rest = row
        more = rest.pop() if rest and isinstance(rest[-1], dict) else {}
        size, chunks, target, tree = 0, cast(tuple[Chunk, ...], ()), b"", ""
        if kind == "f":
            size = int(rest[0])
            if isinstance(rest[1], str):
                chunks = ((0, size, Digest(rest[1])),)
            else:
                chunks = tuple((int(o), int(n), Digest(d)) for o, n, d in rest[1])
        elif kind == "d":
            tree = str(rest[0])
        elif kind == "l":
            target = to_bytes(rest[0])
        elif kind != "p":
            raise TreeDamaged(f"unknown kind {kind!r}")
        xattrs = tuple((str(n), bytes.fromhex(v)) for n, v in more.get("x", []))
        return Entry(
            _checked(to_bytes(name)), kind, int(mode), int(uid), int(gid), int(mtime_ns), size,
            chunks, target, tree, str(more.get("l", "")), str(more.get("h", "")), xattrs,
        )  # fmt: skip
    except (ValueError, TypeError, IndexError, AttributeError) as cause:
        raise TreeDamaged(f"bad row in a manifest: {cause}") from cause


@dataclass(frozen=True)
class Reader:
    """Reads manifests, each only once while it is in use."""

    store: BlobStore
    cache: dict[str, Mapping[bytes, Entry]]

    @classmethod
    def of(cls, store: BlobStore) -> Reader:
        """A reader with nothing read yet."""
        return cls(store, {})

    def directory(self, digest: str) -> Mapping[bytes, Entry]:
        """Entries by name. Raises BlobError or TreeDamaged."""
        known = self.cache.get(digest)
        if known is None:
            known = {entry.name: entry for entry in read_tree(self.store, digest)}
            self.cache[digest] = known
        return known

    def walk(self, digest: str, prefix: bytes = b"") -> Iterator[tuple[bytes, Entry]]:
        """All paths below, each directory before what is in it."""
        pending = [(prefix, digest)]
        while pending:
            base, tree = pending.pop()
            for name, entry in self.directory(tree).items():
                path = base + b"/" + name if base else name
                yield path, entry
                if entry.kind == "d":
                    pending.append((path, entry.tree))


def _starts_page(name: bytes) -> bool:
    return zlib.crc32(name) & _PAGE_MASK == 0


def _encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _decode(store: BlobStore, digest: str) -> dict[str, Any]:
    try:
        value = json.loads(store.get(Digest(digest)))
    except ValueError as cause:
        raise TreeDamaged(f"manifest {digest[:12]} is not JSON") from cause
    if not isinstance(value, dict):
        raise TreeDamaged(f"manifest {digest[:12]} is not an object")
    return value


def _rows(store: BlobStore, digest: str) -> Iterator[list[Entry]]:
    value = _decode(store, digest)
    if "p" in value:
        for page in value["p"]:
            yield from _rows(store, page)
    else:
        yield [decode_row(row) for row in value.get("e", [])]


def _checked(name: bytes) -> bytes:
    # A manifest from elsewhere must not lead a restore out of its root.
    if not name or name in (b".", b"..") or b"/" in name or b"\0" in name:
        raise TreeDamaged(f"impossible name {name!r} in a manifest")
    return name
