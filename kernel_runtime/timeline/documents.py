"""Which timeline a notebook continues, judged by several hints. Pure: no I/O, no clock.

No single key works: a path changes by a rename, a file's identity by every atomic save, and what is
written in the file is copied with it. So a timeline keeps what its notebook looked like at its last
use (``Looks``), and a kernel that starts compares. Nothing is ever written into a notebook.

| path | looks | what it is |
| --- | --- | --- |
| as recorded | the same file, or cells in common, or nothing to compare | the same notebook |
| as recorded | another file, no cell in common | a new notebook; the old timeline is set aside |
| new, recorded one gone | the same file, or most of the cells | moved |
| new, recorded one there | most of the cells | a copy, with a timeline of its own |
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from kernel_runtime.later import dataclass

Outcome = Literal["new", "same", "moved", "copied", "replaced", "returned"]

CELLS_KEPT: Final = 2000
_MOST: Final = 0.5
_FORMER_KEPT: Final = 20


@dataclass(frozen=True)
class Looks:
    """What a notebook was like when it was last seen.

    path: resolved. file: inode number and time of birth in nanoseconds, or inode and device where
    the filesystem tells no birth; None where it was not there. cells: ids of its cells and digests
    of their sources, None where it could not be read. former: paths that it had before. roots:
    directories of the workspace as [path, inode, birth].
    """

    path: str
    file: tuple[int, int] | None = None
    cells: frozenset[str] | None = None
    former: tuple[str, ...] = ()
    roots: tuple[tuple[str, int, int], ...] = ()

    def is_same_file(self, other: Looks) -> bool:
        """Whether it is one file on the disk, whatever its name."""
        return self.file is not None and self.file == other.file

    def in_common(self, other: Looks) -> int:
        """How many cells both have: by their ids, or by their sources where one has no ids."""
        return len(_ids(self, other) & _ids(other, self))

    def has_most_of(self, other: Looks) -> bool:
        """Whether at least half of what the other one had is in this one."""
        had = len(_ids(other, self))
        return had > 0 and self.in_common(other) >= _MOST * had

    def continues(self, other: Looks) -> bool:
        """Whether this may be what became of the other one under the same name."""
        if self.is_same_file(other) or not other.cells or self.cells is None:
            return True
        return self.in_common(other) > 0

    def after(self, old: Looks | None) -> Looks:
        """The same with what is known of earlier paths and directories."""
        if old is None:
            return self
        paths = [p for p in (*old.former, old.path) if p != self.path]
        roots = dict.fromkeys((*old.roots, *self.roots))
        cells = self.cells if self.cells is not None else old.cells
        return replace(
            self,
            cells=cells,
            former=tuple(dict.fromkeys(paths))[-_FORMER_KEPT:],
            roots=tuple(roots)[-_FORMER_KEPT:],
        )

    def names_before(self) -> list[str]:
        """What it was called before, also below what a directory that was moved is called now."""
        found = dict.fromkeys(self.former)
        for old, *mark in self.roots:
            for new, *other in self.roots:
                if other == mark and new != old:
                    below = [p for p in self.former if p.startswith(f"{old}/")]
                    found.update((new + p[len(old) :], None) for p in below)
        found.pop(self.path, None)
        return list(found)

    def as_json(self) -> str:
        """For the store."""
        cells = None if self.cells is None else sorted(self.cells)[:CELLS_KEPT]
        data = {"path": self.path, "file": self.file, "cells": cells, "former": self.former}
        return json.dumps({**data, "roots": self.roots})

    @staticmethod
    def from_json(text: str) -> Looks:
        """The inverse. Raises ValueError."""
        try:
            data: dict[str, Any] = json.loads(text)
            file, cells = data["file"], data["cells"]
            return Looks(
                str(data["path"]),
                None if file is None else (int(file[0]), int(file[1])),
                None if cells is None else frozenset(map(str, cells)),
                tuple(map(str, data["former"])),
                tuple((str(p), int(i), int(b)) for p, i, b in data["roots"]),
            )
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"not what a notebook looks like: {error!r}") from error


def _ids(looks: Looks, other: Looks) -> frozenset[str]:
    """What of a notebook is compared with another one's."""
    sets = [looks.cells or frozenset(), other.cells or frozenset()]
    kind = "id:" if all(any(c.startswith("id:") for c in cells) for cells in sets) else "src:"
    return frozenset(cell for cell in sets[0] if cell.startswith(kind))


@dataclass(frozen=True)
class Known:
    """A timeline of the store, as far as its notebook goes.

    path: None where another notebook has taken its name. exists: whether a file is at the path that
    it looked to have. in_use: a kernel has it.
    """

    timeline: str
    path: str | None
    looks: Looks | None
    exists: bool
    in_use: bool


@dataclass(frozen=True)
class Verdict:
    """What is to be done: timeline is the one to go on with (None: a new one); aside is to give up
    its path; other is the one that is spoken of (copied from, replaced)."""

    outcome: Outcome
    timeline: str | None = None
    aside: str | None = None
    other: Known | None = None


def judge(present: Looks, known: Sequence[Known]) -> Verdict:
    """Which of the known timelines (of one kernel name) the notebook goes on with."""
    here = next((one for one in known if one.path == present.path), None)
    if here is not None and (here.looks is None or present.continues(here.looks)):
        return Verdict("same", here.timeline)
    former = _best(present, (k for k in known if _was_called(k, present.path)))
    if former is not None:
        return Verdict("returned", former.timeline, here.timeline if here else None, here)
    if here is not None:
        return Verdict("replaced", None, here.timeline, here)
    moved = _best(present, (k for k in known if k.path and not k.exists and not k.in_use))
    if moved is not None:
        return Verdict("moved", moved.timeline, None, moved)
    original = _best(present, (k for k in known if k.path and k.exists))
    if original is not None:
        return Verdict("copied", None, None, original)
    return Verdict("new")


def _was_called(known: Known, path: str) -> bool:
    """Whether it gave up this path to another notebook."""
    return known.path is None and known.looks is not None and known.looks.path == path


def _best(present: Looks, known: Iterable[Known]) -> Known | None:
    """The one that is the same file, or has most cells in common; the newest of equals."""
    best, most = None, 0
    for one in known:
        if one.looks is None or (one.in_use and one.path is None):
            continue
        if present.is_same_file(one.looks):
            return one
        common = present.in_common(one.looks)
        if present.has_most_of(one.looks) and common >= most:
            best, most = one, common
    return best
