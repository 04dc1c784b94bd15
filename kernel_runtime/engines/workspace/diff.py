"""What differs between two trees. Equal manifests are not looked into."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_runtime.engines.workspace.model import Change, Entry
from kernel_runtime.engines.workspace.tree import Reader


def differences(
    reader: Reader, root: int, before: Entry | None, after: Entry | None
) -> list[Change]:
    """Changes from one state of a root to another, sorted by path; renames are recognised.

    A file counts as renamed if exactly one path with its content, not empty, went away and
    exactly one came. Raises BlobError, TreeDamaged.
    """
    if before is None and after is None:
        return []
    found: list[tuple[bytes, Entry | None, Entry | None]] = []
    _compare(reader, b"", before, after, found)
    regrouped = _regrouped(found)
    changes = [
        _change(root, path, old, new)
        for path, old, new in found
        if path and _worth_telling(old, new, path in regrouped)
    ]
    return sorted(_with_renames(root, changes, found), key=lambda change: change.path)


def _compare(
    reader: Reader,
    path: bytes,
    old: Entry | None,
    new: Entry | None,
    found: list[tuple[bytes, Entry | None, Entry | None]],
) -> None:
    pending = [(path, old, new)]
    while pending:
        at, left, right = pending.pop()
        if left == right:
            continue
        same_directory = left is not None and right is not None and left.kind == right.kind == "d"
        if not same_directory or (left is not None and right is not None
                                  and left.meta != right.meta):  # fmt: skip
            found.append((at, left, right))
        left_tree = left.tree if left is not None and left.kind == "d" else ""
        right_tree = right.tree if right is not None and right.kind == "d" else ""
        if left_tree == right_tree:
            continue
        left_names = reader.directory(left_tree) if left_tree else {}
        right_names = reader.directory(right_tree) if right_tree else {}
        for name in left_names.keys() | right_names.keys():
            below = at + b"/" + name if at else name
            pending.append((below, left_names.get(name), right_names.get(name)))


def _worth_telling(old: Entry | None, new: Entry | None, regrouped: bool) -> bool:
    """Leaves out what follows from other changes: a directory's mtime, an inode number."""
    if old is None or new is None or old.kind != new.kind:
        return True
    if old.kind == "d":
        return old.mode != new.mode or old.xattrs != new.xattrs
    return regrouped or old.content != new.content or old.meta != new.meta


def _regrouped(found: list[tuple[bytes, Entry | None, Entry | None]]) -> set[bytes]:
    """Paths that are hard-linked with other paths than before.

    A group's name changes whenever its inode does; what counts is who belongs together.
    """
    old_to_new: dict[object, set[object]] = {}
    new_to_old: dict[object, set[object]] = {}
    pairs: list[tuple[bytes, object, object]] = []
    for path, old, new in found:
        if old is not None and new is not None and old.kind == new.kind == "f":
            before, after = old.link or path, new.link or path
            pairs.append((path, before, after))
            old_to_new.setdefault(before, set()).add(after)
            new_to_old.setdefault(after, set()).add(before)
    return {
        path
        for path, before, after in pairs
        if len(old_to_new[before]) > 1 or len(new_to_old[after]) > 1
    }


def _change(root: int, path: bytes, old: Entry | None, new: Entry | None) -> Change:
    before = None if old is None else old.size
    after = None if new is None else new.size
    if old is None:
        return Change(root, path, "created", before, after)
    if new is None:
        return Change(root, path, "deleted", before, after)
    if old.kind != new.kind:
        return Change(root, path, "type", before, after)
    if old.kind != "d" and old.content != new.content:
        return Change(root, path, "changed", before, after)
    if old.mode != new.mode:
        return Change(root, path, "mode", before, after)
    return Change(root, path, "links" if old.meta == new.meta else "meta", before, after)


def _with_renames(
    root: int,
    changes: list[Change],
    found: list[tuple[bytes, Entry | None, Entry | None]],
) -> Iterator[Change]:
    gone: dict[tuple[object, ...], list[bytes]] = {}
    came: dict[tuple[object, ...], list[bytes]] = {}
    for path, old, new in found:
        if old is not None and new is None and old.kind == "f" and old.size:
            gone.setdefault(old.content, []).append(path)
        if new is not None and old is None and new.kind == "f" and new.size:
            came.setdefault(new.content, []).append(path)
    pairs = {
        targets[0]: gone[content][0]
        for content, targets in came.items()
        if len(targets) == 1 and len(gone.get(content, [])) == 1
    }
    sources = set(pairs.values())
    for change in changes:
        if change.kind == "deleted" and change.path in sources:
            continue
        if change.kind == "created" and change.path in pairs:
            yield Change(
                root, change.path, "renamed", change.size_after, change.size_after,
                pairs[change.path],
            )  # fmt: skip
        else:
            yield change
