"""What was unpacked, put into the store: all of it or nothing.

Order: content, then layers, each on the disk, then one transaction that names them. Cut short at
any moment before that, there is waste that `jupyter timetravel prune` removes, and no timeline.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from jupyter_timetravel.exchange.errors import ImportRefused
from jupyter_timetravel.exchange.manifest import Contents
from jupyter_timetravel.exchange.reading import Unpacked, unpack
from jupyter_timetravel.meter import Meter
from kernel_runtime.engines.overlay.directory import EnvironmentDirectory, State
from kernel_runtime.engines.overlay.markers import TRUSTED, USER
from kernel_runtime.engines.overlay.removal import remove_tree
from kernel_runtime.engines.workspace.tree import TreeDamaged, decode_row
from kernel_runtime.store.blobs import BlobStore, Digest, digest_of
from kernel_runtime.store.database import Store
from kernel_runtime.store.encryption import EncryptionRefused
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.namespaces import NamespaceStore
from kernel_runtime.store.origins import Origin
from kernel_runtime.store.reflinks import sync_filesystem
from kernel_runtime.timeline import Checkpoint
from kernel_runtime.timeline.text import plural

try:
    import fcntl
except ImportError:  # not on Windows, where there is no store either
    fcntl = None  # type: ignore[assignment]

PREFIX: Final = "import-"
_UNSAFE_MODE: Final = 0o6000


@contextlib.contextmanager
def staging(store: Path) -> Iterator[Path]:
    """A directory on the store's disk for one import, locked meanwhile, and gone afterwards."""
    (store / "tmp").mkdir(mode=0o700, exist_ok=True)
    top = store / "tmp" / f"{PREFIX}{secrets.token_hex(8)}"
    top.mkdir(mode=0o700)
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield top
    finally:
        os.close(fd)
        with contextlib.suppress(FileNotFoundError):
            remove_tree(top)


def left_over(store: Path) -> list[Path]:
    """Directories of imports that were cut short."""
    found = []
    for path in (store / "tmp").glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(fd).st_mtime > 1:  # not one that is about to be locked
                    found.append(path)
            finally:
                os.close(fd)
    return found


def take_in(
    store: Store, file: Path, *, any_ratio: bool = False, meter: Meter | None = None
) -> tuple[str, Contents, Origin]:
    """Import a file; returns the new timeline's id, what is in it, and its origin.

    meter: counts the bytes that are unpacked, then the objects that the store takes.
    Raises ImportRefused; then the store is as it was.
    """
    markers = TRUSTED if os.geteuid() == 0 else USER
    meter = meter or Meter()
    with staging(store.directory) as top:
        unpacked = unpack(file, top, markers, any_ratio=any_ratio, meter=meter)
        return take_unpacked(store, str(file), unpacked, markers.prefix, meter=meter)


def take_unpacked(
    store: Store,
    name: str,
    unpacked: Unpacked,
    markers: str,
    blobs: BlobStore | None = None,
    meter: Meter | None = None,
) -> tuple[str, Contents, Origin]:
    """Likewise, of what was unpacked.

    name: what it is called in an error. markers: of its layers. blobs: the store's, where content
    of it was put already. meter: counts what the store takes. Raises ImportRefused.
    """
    try:
        sound = _Checked(name, unpacked)
        return _Taking(store, sound, markers, blobs, meter or Meter()).run()
    except RecursionError as error:
        raise ImportRefused(name, "its directories lie too deep in each other") from error
    except (StoreError, OSError) as error:
        raise ImportRefused(name, str(error)) from error


class _Checked:
    """An unpacked file whose checkpoints find all that they name; set-user-id bits are gone."""

    def __init__(self, file: str, unpacked: Unpacked) -> None:
        self._file = file
        self.unpacked = unpacked
        self.namespaces = unpacked.store_of_namespaces()
        self.changed: dict[str, bytes] = {}
        """Manifests that had to be written anew, by their digests."""
        self.blobs: set[str] = set()
        self.held: set[str] = set()
        self._trees: dict[str, str] = {}
        self.checkpoints = [self._checkpoint(one) for one in unpacked.contents.checkpoints]
        missing = unpacked.contents.needed_layers() - unpacked.layers
        if missing:
            raise ImportRefused(file, f"the layer {min(missing)} is not in it")

    def read(self, digest: str) -> bytes:
        """A blob that the store is to have."""
        return self.changed.get(digest) or self.unpacked.blob(digest)

    def _checkpoint(self, checkpoint: Checkpoint) -> Checkpoint:
        captures = []
        for capture in checkpoint.captures:
            ref = capture.ref if capture.state == "ready" else None
            if ref is not None and capture.kind == "filesystem":
                capture = replace(capture, ref=self._snapshot(ref))
            elif ref is not None and capture.kind == "namespace":
                self._check_namespace(ref)
            captures.append(capture)
        return replace(checkpoint, captures=tuple(captures))

    def _check_namespace(self, ref: str) -> None:
        """Look at its list; nothing of it is loaded."""
        there = self.unpacked.namespaces
        needed = {ref} if ref not in there else self.namespaces.needs(ref)
        if missing := needed - there:
            name = f"namespaces/{min(missing)}"
            raise self._refused("a part of a namespace is not in it", name)

    def _snapshot(self, digest: str) -> str:
        if digest in self._trees:
            return self._trees[digest]
        value = self._json(digest)
        try:
            if value["left_out"]:
                self._need(value["left_out"])
            for row in value["roots"]:
                if not isinstance(row["path"], str) or "\0" in row["path"]:
                    raise TypeError("a directory has no path")
                if row["entry"] is not None:
                    row["entry"] = self._row(row["entry"], digest)
        except (KeyError, TypeError, IndexError, TreeDamaged) as error:
            raise self._damaged(digest, error) from error
        return self._written(digest, value)

    def _tree(self, digest: str) -> str:
        """Check a directory and all below; what its name is without set-user-id bits."""
        if digest in self._trees:
            return self._trees[digest]
        value = self._json(digest)
        try:
            if "p" in value:
                value["p"] = [self._tree(page) for page in value["p"]]
            else:
                value["e"] = [self._row(row, digest) for row in value["e"]]
        except (KeyError, TypeError, IndexError, TreeDamaged) as error:
            raise self._damaged(digest, error) from error
        return self._written(digest, value)

    def _row(self, row: list[Any], digest: str) -> list[Any]:
        entry = decode_row(row)  # its name and kind are checked there
        if row[1] == "d":
            row[6] = self._tree(entry.tree)
        elif entry.mode & _UNSAFE_MODE:
            row[2] = entry.mode & ~_UNSAFE_MODE
        for _, _, content in entry.chunks:
            if entry.held:
                if content not in self.unpacked.held:
                    raise self._refused("content that it names is not in it", f"held/{content}")
                self.held.add(content)
            else:
                self._need(content)
        return row

    def _need(self, digest: str) -> None:
        if digest not in self.unpacked.blobs:
            raise self._refused("content that it names is not in it", f"blobs/{digest:.64}")
        self.blobs.add(digest)

    def _json(self, digest: str) -> dict[str, Any]:
        self._trees[digest] = digest  # what names itself is not walked for ever
        self._need(digest)
        try:
            value = json.loads(self.unpacked.blob(digest))
        except (ValueError, RecursionError) as error:
            raise self._damaged(digest, error) from error
        if not isinstance(value, dict):
            raise self._damaged(digest, TypeError("it is no list of files"))
        return value

    def _written(self, digest: str, value: dict[str, Any]) -> str:
        text = json.dumps(value, separators=(",", ":")).encode("ascii")
        new = digest_of(text)
        if new != digest:
            self.changed[new] = text
            self.blobs.discard(digest)
            self.blobs.add(new)
        self._trees[digest] = new
        return new

    def _damaged(self, digest: str, error: Exception) -> ImportRefused:
        return self._refused(f"a list of files is damaged ({error!r:.200})", f"blobs/{digest}")

    def _refused(self, cause: str, member: str) -> ImportRefused:
        return ImportRefused(self._file, cause, member)


class _Taking:
    def __init__(
        self,
        store: Store,
        sound: _Checked,
        markers: str,
        blobs: BlobStore | None,
        meter: Meter,
    ) -> None:
        self._meter = meter
        self._store, self._sound, self._markers = store, sound, markers
        self._blobs = blobs or BlobStore(store.directory)
        self._contents = sound.unpacked.contents

    def run(self) -> tuple[str, Contents, Origin]:
        contents, directory = self._contents, self._store.directory
        environment = EnvironmentDirectory(directory / "environments" / contents.state.id)
        origin = Origin(
            key=contents.key,
            notebook=contents.notebook,
            exported_at=contents.exported_at,
            imported_at=datetime.now(timezone.utc).isoformat(),
            trusted="your own key" if self._sound.unpacked.signed_here else "",
        )
        blobs, namespaces = self._blobs, NamespaceStore(directory)
        pins = {
            Digest(c.ref)
            for one in self._sound.checkpoints
            for c in one.captures
            if c.kind == "filesystem" and c.state == "ready" and c.ref
        }
        new_pins = pins - set(blobs.pinned())
        try:
            with namespaces.writing():
                self._put(blobs, namespaces, pins)
                self._place_layers(environment)
                self._sound.unpacked.place_images()
                state = contents.state
                self._store.insert(state, contents.kernel_name, origin, self._sound.checkpoints)
        except BaseException:
            for pin in new_pins:
                blobs.unpin(pin)
            blobs.discard_added()
            environment.remove()
            raise
        return contents.state.id, contents, origin

    def _put(self, blobs: BlobStore, namespaces: NamespaceStore, pins: set[Digest]) -> None:
        top = self._sound.unpacked.top
        if self._sound.held and blobs.is_encrypted:
            raise EncryptionRefused(
                f"it has {plural(len(self._sound.held), 'file')} too large to copy, which this "
                "store, being encrypted, cannot hold."
            )
        lacking = namespaces.missing(self._sound.unpacked.namespaces)
        self._meter.begin("storing", len(self._sound.blobs) + len(lacking), "objects")
        with blobs.adding():
            for pin in pins:
                blobs.pin(pin)
            for digest in sorted(self._sound.blobs):
                if not blobs.touch(Digest(digest)):
                    blobs.put(self._sound.read(digest))
                self._meter.advance()
            for token in sorted(self._sound.held):
                target = blobs.held_path(Digest(token))
                if not target.exists():
                    os.rename(top / "held" / token, target)
        blobs.flush()
        for digest in lacking:
            namespaces.put(digest, self._sound.namespaces.get(digest))
            self._meter.advance()
        namespaces.flush()

    def _place_layers(self, environment: EnvironmentDirectory) -> None:
        needed = self._contents.needed_layers()
        held = (c for one in self._sound.checkpoints for c in one.captures)
        if not any(c.engine == "overlay" and c.state == "ready" for c in held):
            return
        environment.make()
        for layer in needed:
            os.rename(self._sound.unpacked.top / "layers" / layer, environment.layers / layer)
        fd = os.open(environment.layers, os.O_RDONLY | os.O_DIRECTORY)
        try:
            sync_filesystem(fd)
        finally:
            os.close(fd)
        environment.write(self._state(needed), durable=True)

    def _state(self, needed: set[str]) -> State:
        """What the first kernel starts with: the environment at the head."""
        head = next(c for c in self._sound.checkpoints if c.id == self._contents.state.head)
        overlay = head.capture("filesystem", engine="overlay")
        state = State(markers=self._markers, synced=sorted(needed))
        if overlay is not None and overlay.state == "ready":
            state.stacks = {root: list(s) for root, s in overlay.details["stacks"].items() if s}
            state.root_layer = overlay.details["root_layer"]
        return state
