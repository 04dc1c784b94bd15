"""What a disk may hold after the power went: made from the notes of ``disk.c``.

What was synced is there. Of what was not, the disk has what it happened to have: each write whole,
torn at a sector, or not at all, in any order; and of the changes of names since a directory was
synced, as many as it happened to have. Two kinds of disk: an *ordered* one keeps the changes of
names in their order (as journaling filesystems do), a *wild* one keeps any of them.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import needs

_RECORD = struct.Struct("=cq3I")
SECTOR = 512


@dataclass
class Note:
    """One operation: c create, w write, t truncate, s fsync, S syncfs, r rename, l link,
    u unlink, d mkdir."""

    op: str
    a: str
    b: str
    offset: int
    data: bytes


def build_shim(where: Path) -> Path:
    """Compile ``disk.c``; skips where there is no compiler."""
    made = where / "disk.so"
    compiler = os.environ.get("CC", "cc")
    needs("a C compiler", shutil.which(compiler) is not None)
    flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra"]
    source = Path(__file__).with_name("disk.c")
    subprocess.run([compiler, *flags, "-o", made, source, "-ldl", "-pthread"], check=True)
    return made


def read_notes(log: Path, root: Path) -> list[Note]:
    """All notes, with paths below the root; without one that is just being written."""
    data, at, notes = log.read_bytes(), 0, []
    while at + _RECORD.size <= len(data):
        op, offset, *lengths = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        if at + sum(lengths) > len(data):
            break
        parts = []
        for length in lengths:
            parts.append(data[at : at + length])
            at += length
        a, b = (os.path.relpath(os.fsdecode(part), root) if part else "" for part in parts[:2])
        notes.append(Note(op.decode(), a, b, offset, parts[2]))
    return notes


@dataclass
class File:
    """A file's bytes that are safe, and what was done to it since."""

    safe: bytearray = field(default_factory=bytearray)
    since: list[Note] = field(default_factory=list)

    def sync(self) -> None:
        for note in self.since:
            apply(self.safe, note)
        self.since.clear()

    def after_the_cut(self, luck: random.Random) -> bytes:
        """Some of what was not synced."""
        found = bytearray(self.safe)
        share = luck.random()
        for note in self.since:
            if luck.random() > share:
                continue
            if note.op == "w" and luck.random() < 0.2:
                kept = luck.randrange(0, len(note.data) + SECTOR, SECTOR)
                note = Note("w", note.a, "", note.offset, note.data[:kept])
            apply(found, note)
        return bytes(found)


def apply(data: bytearray, note: Note) -> None:
    """Write or truncate."""
    if note.op == "t":
        del data[note.offset :]
        data.extend(bytes(note.offset - len(data)))
    else:
        data.extend(bytes(max(0, note.offset - len(data))))
        data[note.offset : note.offset + len(note.data)] = note.data


@dataclass
class Change:
    """A change of names that is not safe yet: (directories it is in, what to set, to clear)."""

    directories: set[str]
    sets: dict[str, File | None]
    clears: set[str]


class Disk:
    """Files and directories (None) by path: as the process saw them, and as they are safe."""

    def __init__(self) -> None:
        self.live: dict[str, File | None] = {".": None}
        self.safe: dict[str, File | None] = {".": None}
        self.changes: list[Change] = []

    def do(self, note: Note) -> None:
        """Take the next note."""
        if note.op in "wt":
            file = self.live.get(note.a)
            if file is not None:
                file.since.append(note)
        elif note.op == "s":
            file = self.live.get(note.a)
            if file is not None:
                file.sync()
            else:
                self._sync_names(note.a)
        elif note.op == "S":
            for file in self.live.values():
                if file is not None:
                    file.sync()
            self._sync_names(None)
        else:
            self._rename(note)

    def _rename(self, note: Note) -> None:
        if note.op in "cd":
            sets, clears = {note.a: File() if note.op == "c" else None}, set()
        elif note.op == "u":
            sets, clears = {}, {note.a}
        elif note.op == "l":
            sets, clears = {note.b: self.live[note.a]}, set()
        else:
            sets, clears = {note.b: self.live[note.a]}, {note.a}
        directories = {os.path.dirname(path) or "." for path in [*sets, *clears]}
        self.changes.append(Change(directories, sets, clears))
        _change(self.live, self.changes[-1])

    def _sync_names(self, directory: str | None) -> None:
        """Those of one directory, or of all; and what was done to the same names before: a file
        that was renamed away cannot come to be under its old name later."""
        paths: set[str] = set()
        chosen: set[int] = set()
        for change in reversed(self.changes):
            touched = {*change.sets, *change.clears}
            if directory is None or directory in change.directories or touched & paths:
                chosen.add(id(change))
                paths |= touched
        for change in self.changes:
            if id(change) in chosen:
                _change(self.safe, change)
        self.changes = [change for change in self.changes if id(change) not in chosen]

    def after_the_cut(self, luck: random.Random, *, wild: bool) -> dict[str, bytes | None]:
        """Paths and their bytes; None is a directory."""
        names = dict(self.safe)
        if wild:
            share = luck.random()
            kept = [change for change in self.changes if luck.random() < share]
        else:
            kept = self.changes[: luck.randint(0, len(self.changes))]
        for change in kept:
            _change(names, change)
        found: dict[str, bytes | None] = {}
        contents: dict[int, bytes] = {}
        for path in sorted(names):
            parent = os.path.dirname(path) or "."
            if path != "." and (parent not in found or found[parent] is not None):
                continue  # its directory did not make it
            file = names[path]
            if file is not None and id(file) not in contents:
                contents[id(file)] = file.after_the_cut(luck)
            found[path] = None if file is None else contents[id(file)]
        return found


def _change(names: dict[str, File | None], change: Change) -> None:
    for path in change.clears:
        names.pop(path, None)
    names.update(change.sets)


def put_on_disk(found: dict[str, bytes | None], where: Path) -> None:
    """Make a directory of it."""
    for path, data in found.items():
        target = where / path
        if data is None:
            target.mkdir(mode=0o700, exist_ok=True)
        else:
            target.write_bytes(data)
            target.chmod(0o600)
