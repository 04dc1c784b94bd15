"""Layers of the environment as members, the way OCI images have them, and back.

A deletion is an empty file ``.wh.<name>``, a directory that hides what lies below has an empty file
``.wh..wh..opq`` in it (OCI image-spec, "Layer Filesystem Changeset"). How overlayfs says the same
depends on who mounts (markers.py), so it is not part of the file.

A user's own ``.wh.X`` is a file like any other. It is written as ``.%wh.X`` (his ``.%wh.X`` as
``.%%wh.X``, and so on), which nothing takes for a deletion, and its deletion as ``.wh..%wh.X``.

Kept: content, mode, owner, mtime, hard links within a layer, symlinks as they are, ``user.*``
attributes (``user.overlay.*`` too, by the names that the user sees). Left out: sockets and devices.
Dropped when read: set-user-id and set-group-id bits.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jupyter_timetravel.exchange.members import PIECE, BadMember, Member
from kernel_runtime.engines.overlay.markers import Markers
from kernel_runtime.engines.overlay.paths import open_regular

WHITEOUT: Final = ".wh."
OPAQUE: Final = ".wh..wh..opq"
_KEPT_MODE: Final = 0o1777
_TO_ESCAPE: Final = re.compile(r"\.%*wh\.")
_ESCAPED: Final = re.compile(r"\.%+wh\.")


def escaped(name: str) -> str:
    """A name of the user's, one part of a path, as a member has it."""
    return f".%{name[1:]}" if _TO_ESCAPE.match(name) else name


def unescaped(part: str) -> str:
    """The name of the user's that a part of a member's name stands for, unless it is a deletion."""
    return f".{part[2:]}" if _ESCAPED.match(part) else part


@dataclass(frozen=True)
class LayerEntry:
    """A member of a layer and, for a file with content, where that is or how it is read."""

    member: Member
    path: bytes = b""
    read: Callable[[], Iterator[bytes]] | None = None

    def content(self) -> Iterator[bytes]:
        """Its bytes. Raises OSError, and what read does."""
        if self.read is not None:
            yield from self.read()
        elif self.member.size:
            with open(open_regular(self.path), "rb") as file:
                while piece := file.read(PIECE):
                    yield piece


def entries(top: Path, prefix: str, markers: Markers) -> Iterator[LayerEntry]:
    """All of a layer, each directory before what is in it. Raises OSError."""
    links: dict[tuple[int, int], str] = {}
    todo = [(os.fsencode(top), prefix)]
    while todo:
        path, name = todo.pop()
        found = os.lstat(path)
        if markers.is_deletion(path, found):
            parent, _, base = name.rpartition("/")
            yield LayerEntry(Member(f"{parent}/{WHITEOUT}{base}", mode=0))
            continue
        if stat.S_ISDIR(found.st_mode):
            yield LayerEntry(_member(path, name, "directory", found, markers))
            if markers.is_opaque(path):
                yield LayerEntry(Member(f"{name}/{OPAQUE}", mode=0))
            below = sorted(os.listdir(path), reverse=True)
            todo += [(path + b"/" + one, f"{name}/{escaped(os.fsdecode(one))}") for one in below]
            continue
        key = (found.st_dev, found.st_ino)
        if key in links:
            yield LayerEntry(Member(name, "hardlink", target=links[key]))
        elif stat.S_ISREG(found.st_mode):
            yield LayerEntry(_member(path, name, "file", found, markers), path)
        elif stat.S_ISLNK(found.st_mode):
            yield LayerEntry(_member(path, name, "symlink", found, markers))
        elif stat.S_ISFIFO(found.st_mode):
            yield LayerEntry(_member(path, name, "fifo", found, markers))
        else:
            continue
        if found.st_nlink > 1:
            links.setdefault(key, name)


def _member(path: bytes, name: str, kind: str, found: os.stat_result, markers: Markers) -> Member:
    attributes = markers.visible_attributes(path)
    return Member(
        name,
        kind,  # type: ignore[arg-type]
        size=found.st_size if kind == "file" else 0,
        mode=stat.S_IMODE(found.st_mode),
        uid=found.st_uid,
        gid=found.st_gid,
        mtime_ns=found.st_mtime_ns,
        target=os.fsdecode(os.readlink(path)) if kind == "symlink" else "",
        xattrs={key: value for key, value in attributes.items() if _is_kept(key)},
    )


def _is_kept(attribute: str) -> bool:
    return attribute.startswith("user.")


class LayerMaker:
    """Makes layers from members below one directory, and nothing anywhere else.

    A member is made only in a directory that this archive has made itself, so no link is followed
    whatever the archive holds. Raises BadMember; OSError.
    """

    def __init__(self, top: Path, markers: Markers) -> None:
        self._top, self._markers = os.fsencode(top), markers
        self._directories: dict[str, Member] = {}
        self._files: set[str] = set()
        self._whiteouts: set[str] = set()
        self.layers: set[str] = set()

    def make(self, member: Member, parts: list[str], content: Iterator[bytes]) -> None:
        """parts: names after ``layers/``, checked to be plain. Uses up the content."""
        layer, *below = parts
        if not (layer.isalnum() and layer.isascii()) or len(layer) > 64:
            raise BadMember(member.name, "that is no name of a layer")
        key = "/".join(parts)
        if not below:
            if member.kind != "directory":
                raise BadMember(member.name, "a layer is a directory")
            os.mkdir(self._top + b"/" + os.fsencode(layer), 0o700)
            self.layers.add(layer)
        elif "/".join(parts[:-1]) not in self._directories:
            raise BadMember(member.name, "it lies in no directory of the file's own")
        path = self._path(parts)
        name = parts[-1]
        if below and name.startswith(WHITEOUT):
            self._make_deletion(member, parts, name)
        elif member.kind == "directory":
            os.mkdir(path, 0o700)
            self._directories[key] = member
        elif member.kind == "file":
            self._write(path, member, content)
            self._files.add(key)
        elif member.kind == "hardlink":
            self._link(path, member, layer)
        elif member.kind == "symlink":
            if not member.target or "\0" in member.target:
                raise BadMember(member.name, "it is a link to nowhere")
            os.symlink(os.fsencode(member.target), path)
            self._dress(path, member)
        else:
            os.mkfifo(path, 0o600)
            self._dress(path, member)
        for _ in content:
            raise BadMember(member.name, "it has content")

    def finish(self) -> None:
        """Give directories their modes and times, the innermost first."""
        for key, member in reversed(self._directories.items()):
            path = self._path(key.split("/"))
            if key in self._whiteouts:
                self._markers.set_may_have_whiteouts(path)
            self._dress(path, member)

    def _path(self, parts: list[str]) -> bytes:
        layer, *below = parts
        names = map(unescaped, below)
        return os.fsencode("/".join([os.fsdecode(self._top), layer, "files", *names]))

    def _make_deletion(self, member: Member, parts: list[str], name: str) -> None:
        if member.kind != "file" or member.size:
            raise BadMember(member.name, "a deletion is an empty file")
        parent = "/".join(parts[:-1])
        if name == OPAQUE:
            if len(parts) > 2:  # the root of a layer is merged whatever it says
                self._markers.set_opaque(self._path(parts[:-1]))
            return
        gone = name[len(WHITEOUT) :]
        if gone in ("", ".", "..") or gone.startswith(WHITEOUT):
            raise BadMember(member.name, "that deletes nothing")
        self._markers.make_whiteout(self._path([*parts[:-1], gone]))
        self._whiteouts.add(parent)

    def _write(self, path: bytes, member: Member, content: Iterator[bytes]) -> None:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(path, flags, 0o600)
        try:
            write_sparse(fd, content)
        finally:
            os.close(fd)
        self._dress(path, member)

    def _link(self, path: bytes, member: Member, layer: str) -> None:
        target = member.target.removeprefix("layers/")
        if target not in self._files or target.split("/")[0] != layer:
            raise BadMember(member.name, "it is a hard link to no file of the same layer")
        os.link(self._path(target.split("/")), path, follow_symlinks=False)

    def _dress(self, path: bytes, member: Member) -> None:
        if os.geteuid() == 0:
            os.chown(path, member.uid, member.gid, follow_symlinks=False)
        for name, value in member.xattrs.items():
            if _is_kept(name):
                _set_attribute(path, self._markers.stored(name), value)
        if member.kind != "symlink":
            os.chmod(path, member.mode & _KEPT_MODE)
        os.utime(path, ns=(member.mtime_ns, member.mtime_ns), follow_symlinks=False)


def _set_attribute(path: bytes, name: str, value: bytes) -> None:
    try:
        os.setxattr(path, name, value, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EPERM):  # e.g. on a symlink
            raise


def write_sparse(fd: int, content: Iterator[bytes]) -> int:
    """Write to an empty file, leaving holes where pieces are all zeros. Returns its size."""
    size = 0
    for piece in content:
        if piece.count(0) != len(piece):
            view = memoryview(piece)
            at = size
            while view:
                done = os.pwrite(fd, view, at)
                view, at = view[done:], at + done
        size += len(piece)
    os.ftruncate(fd, size)
    return size
