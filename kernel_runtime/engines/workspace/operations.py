"""The steps of a restore. Each concerns one name in a directory that is there already.

No step needs another: what is new is made as a whole beside the tree, a directory included,
and put in place by one rename.
"""

from __future__ import annotations

from dataclasses import field

from kernel_runtime.engines.workspace.model import Entry, LeftOut
from kernel_runtime.engines.workspace.state import DirState, Known
from kernel_runtime.later import dataclass

Parts = tuple[bytes, ...]
"""Names from a root down to a directory."""


@dataclass(eq=False)
class Place:
    """Put target where present is (None: nothing there). Whatever is there is moved away."""

    root: int
    parent: Parts
    target: Entry
    present: Known | DirState | None

    @property
    def name(self) -> bytes:
        """The entry's name in its parent."""
        return self.target.name


@dataclass(eq=False)
class Drop:
    """Move away what is there."""

    root: int
    parent: Parts
    name: bytes
    present: Known | DirState


@dataclass(eq=False)
class Remeta:
    """Put mode, owner, times and extended attributes right; the content is."""

    root: int
    parent: Parts
    target: Entry
    present: Known


@dataclass(eq=False)
class Directory:
    """A directory that stays, in which something changes. target: its metadata afterwards;
    None: as it was."""

    root: int
    parts: Parts
    target: Entry | None
    present: DirState


@dataclass
class Operations:
    """All steps of one restore, and what it leaves alone."""

    places: list[Place] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    remetas: list[Remeta] = field(default_factory=list)
    directories: list[Directory] = field(default_factory=list)
    missing_roots: list[tuple[int, Entry]] = field(default_factory=list)
    kept: list[LeftOut] = field(default_factory=list)

    @property
    def steps(self) -> list[Place | Drop]:
        """What is put in place, then what is moved away: deletions come last."""
        return [*self.places, *self.drops]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.places or self.drops or self.remetas or self.directories)


def join(parent: Parts, name: bytes) -> bytes:
    """The path of a name, for people and for comparing; never for opening."""
    return b"/".join((*parent, name))


def is_below(path: bytes, ancestor: bytes) -> bool:
    """Whether path is ancestor or lies below it. Everything lies below the empty path."""
    return not ancestor or path == ancestor or path.startswith(ancestor + b"/")
