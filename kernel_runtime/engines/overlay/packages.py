"""Which packages were installed, upgraded or removed between two states of the environment.

Only what differing layers touch is looked at (index.py): the directories ``*.dist-info`` and
``*.egg-info`` of Python's installers, conda's ``conda-meta``, Debian's ``/var/lib/dpkg/status``.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from kernel_runtime.engines.overlay.changes import differing_layers
from kernel_runtime.engines.overlay.index import (
    Index,
    build_index,
    index_of,
    is_info,
    load_index,
)
from kernel_runtime.engines.overlay.paths import join
from kernel_runtime.engines.overlay.stack import Found, Stack
from kernel_runtime.later import dataclass

__all__ = ["Index", "PackageChange", "build_index", "load_index", "package_changes"]

_HEAD: Final = 16 << 10
"""Bytes of METADATA that are read: name and version stand at the top."""

_DIRECTORIES: Final = 20_000
"""Directories of a deleted tree that are looked into for packages."""

_SITES: Final = (b"site-packages", b"dist-packages")
_DPKG: Final = b"/var/lib/dpkg/status"
_DEVELOPED: Final = "(development)"


class PackageChange(NamedTuple):
    """One package. manager: "pip" (whatever installs Python's way), "conda" or "dpkg".

    before, after: versions, None where it is not installed. where: the directory, as an absolute
    path with the bytes that are not UTF-8 escaped (os.fsdecode), "" for dpkg.
    """

    manager: str
    name: str
    before: str | None
    after: str | None
    where: str


@dataclass(frozen=True)
class _Package:
    name: str
    version: str
    of_conda: bool = False


def package_changes(before: Mapping[str, Stack], after: Mapping[str, Stack]) -> list[PackageChange]:
    """What differs, sorted by place and name; the keys are the roots' absolute paths.

    Roots that are in one of the two only are left out, and a reinstalled version is no change.
    Packages that others bring along (``_vendor``) do not count. Raises OSError.
    """
    found: list[PackageChange] = []
    for root in sorted(before.keys() & after.keys()):
        old, new = before[root], after[root]
        layers = differing_layers(old, new)
        if not layers:
            continue
        notes = [index_of(layer, old.markers) for layer in layers]
        found += _python_and_conda(os.fsencode(root), old, new, notes)
        if any(note.dpkg for note in notes):
            found += _debian(os.fsencode(root), old, new)
    return sorted(found, key=lambda change: (change.where, change.name.lower(), change.manager))


def _python_and_conda(
    root: bytes, old: Stack, new: Stack, notes: Iterable[Index]
) -> list[PackageChange]:
    touched = {path for note in notes for path in note.info}
    for path in {path for note in notes for path in note.hiding}:
        for stack in (old, new):
            touched.update(_info_below(stack, path))
    places: dict[bytes, set[bytes]] = {}
    for path in touched:
        parent, _, name = path.rpartition(b"/")
        if not name.startswith(b"~") and not _is_inside_a_package(parent):
            places.setdefault(parent, set()).add(name)
    found: list[PackageChange] = []
    for parent, names in places.items():
        where = os.fsdecode(root.rstrip(b"/") + b"/" + parent).rstrip("/")
        ours, theirs = _installed(old, parent, names), _installed(new, parent, names)
        for key in ours.keys() | theirs.keys():
            was, now = ours.get(key), theirs.get(key)
            one = now or was
            assert one is not None
            if one.of_conda:
                continue
            versions = (was.version if was else None, now.version if now else None)
            if versions[0] != versions[1]:
                found.append(PackageChange(key[0], one.name, *versions, where))
    return found


def _is_inside_a_package(parent: bytes) -> bool:
    names = parent.split(b"/")
    return b"_vendor" in names or any(name in _SITES for name in names[:-1])


def _info_below(stack: Stack, path: bytes) -> list[bytes]:
    """Entries that stand for packages, at and below a path of a view.

    In a directory that has some, the others are packages themselves and not looked into.
    """
    top = stack.lookup(path)
    if top is None or not top.is_directory:
        return []
    if is_info(path):
        return [path]
    found: list[bytes] = []
    todo = [(path, top)]
    for _ in range(_DIRECTORIES):
        if not todo:
            break
        at, directory = todo.pop()
        try:
            info, below = _looked_into(stack, at, directory)
        except PermissionError:
            continue
        found += info
        if not info:
            todo += below
    return found


def _looked_into(
    stack: Stack, at: bytes, directory: Found
) -> tuple[list[bytes], list[tuple[bytes, Found]]]:
    """Paths that stand for packages, and directories. Most names are never asked for more than
    what a listing tells."""
    names: dict[bytes, None] = {}
    for layered in directory.merged:
        with os.scandir(stack.short(layered.real)) as entries:
            for entry in entries:
                path = join(at, entry.name)
                if is_info(path) or entry.is_dir(follow_symlinks=False):
                    names[entry.name] = None
    info: list[bytes] = []
    below: list[tuple[bytes, Found]] = []
    for name in names:
        path = join(at, name)
        child = stack.child(directory.merged, path, name)
        if child is None:
            continue
        if is_info(path):
            info.append(path)
        elif child.is_directory:
            below.append((path, child))
    return info, below


def _installed(
    stack: Stack, parent: bytes, names: Iterable[bytes]
) -> dict[tuple[str, str], _Package]:
    """The packages that some entries of a directory stand for, by manager and plain name."""
    directory = stack.lookup(parent)
    found: dict[tuple[str, str], _Package] = {}
    if directory is None or not directory.is_directory:
        return found
    for name in names:
        child = stack.child(directory.merged, join(parent, name), name)
        if child is None:
            continue
        if name.endswith(b".json"):
            package, manager = _conda(name), "conda"
        else:
            package, manager = _python(stack, join(parent, name), name, child), "pip"
        if package is not None:
            found[manager, _plain(package.name)] = package
    return found


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _python(stack: Stack, path: bytes, name: bytes, found: Found) -> _Package | None:
    stem, _, kind = os.fsdecode(name).rpartition(".")
    parts = stem.split("-")
    named, version = parts[0], parts[1] if len(parts) > 1 else _DEVELOPED
    if kind == "egg-link":
        return _Package(stem, _DEVELOPED)
    of_conda = False
    if found.is_directory:
        which = b"METADATA" if kind == "dist-info" else b"PKG-INFO"
        head = _read(stack, found, path, which)
        if head is None:
            return None  # what is left of one that was removed
        of_conda = (_read(stack, found, path, b"INSTALLER") or b"").strip() == b"conda"
    else:
        try:
            head = stack.read_bytes(path, _HEAD)
        except PermissionError:
            head = b""
    fields = _fields(head)
    return _Package(fields.get("name", named), fields.get("version", version), of_conda)


def _read(stack: Stack, directory: Found, path: bytes, name: bytes) -> bytes | None:
    """The beginning of a file; None if there is none, nothing if it may not be read."""
    at = join(path, name)
    found = stack.child(directory.merged, at, name)
    if found is None or not stat.S_ISREG(found.stat.st_mode):
        return None
    try:
        return stack.read_bytes(at, _HEAD)
    except PermissionError:
        return b""


def _fields(head: bytes) -> dict[str, str]:
    """Name and version from the lines before the first empty one."""
    found: dict[str, str] = {}
    for line in head.decode("utf-8", "replace").splitlines():
        if not line.strip():
            break
        key, colon, value = line.partition(":")
        if colon and key.lower() in ("name", "version"):
            found.setdefault(key.lower(), value.strip())
    return found


def _conda(name: bytes) -> _Package | None:
    parts = os.fsdecode(name).removesuffix(".json").rsplit("-", 2)
    return _Package(parts[0], f"{parts[1]} ({parts[2]})") if len(parts) == 3 else None


def _debian(root: bytes, old: Stack, new: Stack) -> list[PackageChange]:
    prefix = root.rstrip(b"/") + b"/"
    if not _DPKG.startswith(prefix):
        return []
    path = _DPKG[len(prefix) :]
    was, now = old.lookup(path), new.lookup(path)
    if was is not None and now is not None and os.path.samestat(was.stat, now.stat):
        return []
    ours, theirs = _debian_packages(old, path, was), _debian_packages(new, path, now)
    return [
        PackageChange("dpkg", name, ours.get(name), theirs.get(name), "")
        for name in ours.keys() | theirs.keys()
        if ours.get(name) != theirs.get(name)
    ]


def _debian_packages(stack: Stack, path: bytes, found: Found | None) -> dict[str, str]:
    """Versions by name (with the architecture, where a name is there for several)."""
    if found is None or not stat.S_ISREG(found.stat.st_mode):
        return {}
    versions: dict[str, dict[str, str]] = {}
    text = stack.read_bytes(path).decode("utf-8", "replace")
    for paragraph in text.split("\n\n"):
        fields = dict(_DPKG_LINE.findall(paragraph))
        if fields.get("Status", "").endswith(" installed"):
            name, kind = fields.get("Package", ""), fields.get("Architecture", "")
            versions.setdefault(name, {})[kind] = fields.get("Version", "")
    return {
        name if len(kinds) == 1 else f"{name}:{kind}": version
        for name, kinds in versions.items()
        for kind, version in kinds.items()
    }


_DPKG_LINE: Final = re.compile(r"^(Package|Version|Status|Architecture): *(.*?) *$", re.MULTILINE)
