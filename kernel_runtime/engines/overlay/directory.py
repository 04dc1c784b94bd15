"""An environment on the disk: its layers, and which of them are in use.

    <store>/environments/<timeline id>/
        state.json                 what is mounted, written before the next cell runs
        state.synced.json          the last one that is known to be on the disk
        layers/<id>/files          an upper directory, or a frozen one
        layers/<id>/work           overlayfs's own, while it is the upper
        layers/<id>/index.json     what it holds (packages.py)
        reserve                    room that is given up when the disk is full
        root/                      the sandbox's / where the user is root (rootdir.py)

A layer that is frozen is never written again. The state file is replaced as a whole: whatever
moment a machine stops at, it names one whole state.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, Final

from kernel_runtime.engines.overlay import faults
from kernel_runtime.engines.overlay.paths import private
from kernel_runtime.engines.overlay.removal import remove_tree
from kernel_runtime.errors import EnvironmentRefused
from kernel_runtime.later import dataclass
from kernel_runtime.linux import boot_id
from kernel_runtime.store.paths import private_directory

VERSION = 1

RESERVE = 4 << 20
_PIECE = 1 << 20
"""Bytes: what a capture and a restore need at most, for the directories of new uppers."""

_SYNCED: Final = "state.synced.json"
_PLACES: Final = ("stacks", "uppers", "root_layer")
FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass
class State:
    """What is in ``state.json``."""

    version: int = VERSION
    boot: str = ""
    """The machine's boot id when it was written."""
    running: bool = False
    stacks: dict[str, list[str]] = field(default_factory=dict)
    """Frozen layers of each root, newest first."""
    uppers: dict[str, str] = field(default_factory=dict)
    root_layer: str = ""
    """The newest copy of what lies directly in /."""
    merged: dict[str, list[str]] = field(default_factory=dict)
    """Layers that are equal to a run of others, newest first."""
    synced: list[str] = field(default_factory=list)
    """Layers that are known to be on the disk."""
    markers: str = ""
    """How the names begin of the attributes by which the layers say what is deleted."""
    before: dict[str, Any] = field(default_factory=dict)
    """Stacks, uppers and root_layer of before a restore, until the workspace has followed it."""
    since_ns: int = 0
    """When the host's files were last known to be as the layers expect them."""
    serial: int = 0
    """Counts the writes."""

    def names(self) -> set[str]:
        """The layers that are mounted, or may be again."""
        both = [(self.stacks, self.uppers, self.root_layer)]
        if self.before:
            both.append(tuple(self.before[key] for key in _PLACES))
        found = {""}
        for stacks, uppers, root_layer in both:
            found |= {*uppers.values(), root_layer}.union(*stacks.values())
        return found - {""}

    def note_before(self) -> None:
        """Remember what is mounted now."""
        self.before = copy.deepcopy({key: getattr(self, key) for key in _PLACES})

    def end_cut_short(self, has_followed: Callable[[], bool]) -> None:
        """After a restore that was cut short: what was mounted before is, or what came, for good.

        has_followed: whether the workspace has been restored; asked only where that matters.
        """
        if self.before and not has_followed():
            for key in _PLACES:
                setattr(self, key, self.before[key])
        self.before = {}


class EnvironmentDirectory:
    """One of them; several processes may read it, one writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.layers = path / "layers"

    def make(self) -> None:
        """Make the directories. Raises StoreError."""
        private_directory(self.path.parent)
        private_directory(self.path)
        private_directory(self.layers)
        self.keep_room()

    def keep_room(self) -> None:
        """Hold a little of the disk back, so that one can go back when it is full."""
        with contextlib.suppress(OSError):
            if self._free() > 4 * RESERVE and self._held_back() < RESERVE:
                with open(self.path / "reserve", "ab", opener=private) as f:
                    os.posix_fallocate(f.fileno(), 0, RESERVE)

    def make_room(self) -> None:
        """Give up a piece of what is held back, if the disk is full."""
        with contextlib.suppress(OSError):
            if self._free() < _PIECE:
                os.truncate(self.path / "reserve", max(0, self._held_back() - _PIECE))

    def _free(self) -> int:
        found = os.statvfs(self.layers)
        return found.f_bavail * found.f_frsize

    def _held_back(self) -> int:
        try:
            return os.stat(self.path / "reserve").st_size
        except FileNotFoundError:
            return 0

    def read(self) -> State:
        """The state; a new one if there is none. Raises EnvironmentRefused if it is unreadable.

        After a power cut it may be half written, or an older one than was synced last: then it is
        that one. What has no name there is put aside or deleted like all that was not synced.
        """
        found: State | None = None
        problem: EnvironmentRefused | None = None
        try:
            found = self._read("state.json")
        except EnvironmentRefused as error:
            problem = error
        with contextlib.suppress(EnvironmentRefused):
            synced = self._read(_SYNCED)
            if synced is not None and (
                found.serial < synced.serial if found else synced.boot != boot_id()
            ):
                return synced
        if problem is not None:
            raise problem
        return found or State()

    def _read(self, name: str) -> State | None:
        """None if there is none."""
        try:
            data = json.loads((self.path / name).read_text())
            if not isinstance(data, dict):
                raise ValueError("it is not a state")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error
        if data.get("version") != VERSION:
            raise EnvironmentRefused(
                f"{self.path} was written by another version of jupyter_timetravel. It was left "
                "alone; use that version, or choose another store."
            )
        known = set(State.__dataclass_fields__)
        state = State(**{k: v for k, v in data.items() if k in known})
        if not _is_sound(state):
            raise self._unreadable("it is damaged")
        return state

    def _unreadable(self, why: object) -> EnvironmentRefused:
        return EnvironmentRefused(
            f"{self.path / 'state.json'} cannot be read ({why}). Nothing was changed; "
            "`jupyter timetravel prune --session` removes this session's environment."
        )

    def write(self, state: State, *, durable: bool = False) -> None:
        """Replace the state. durable: not before all that was written is on the disk."""
        try:
            self._write(state, durable)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self.make_room()
            self._write(state, durable)

    def _write(self, state: State, durable: bool) -> None:
        state.serial += 1
        temporary = self.path / "state.json.new"
        with open(temporary, "w", opener=private) as f:
            json.dump(asdict(state), f)
            if durable:
                f.flush()
                os.fsync(f.fileno())
        faults.point("state half written")
        if durable:
            # a name of its own for what is on the disk: the next write may not get there
            second = self.path / f"{_SYNCED}.new"
            second.unlink(missing_ok=True)
            os.link(temporary, second)
            os.replace(second, self.path / _SYNCED)
        os.replace(temporary, self.path / "state.json")
        if durable:
            fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def files(self, layer: str) -> Path:
        """The content of a layer."""
        return self.layers / layer / "files"

    def exists(self, layer: str) -> bool:
        """Whether a layer is there."""
        return self.files(layer).is_dir()

    def all_layers(self) -> list[str]:
        """The ids of whatever is there, temporary ones too."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(os.listdir(self.layers))
        return []

    def remove_unfinished(self) -> None:
        """Delete notes of layers that a killed process was writing. Nobody may be writing any."""
        for unfinished in self.layers.glob("*/.*.tmp"):
            with contextlib.suppress(OSError):
                unfinished.unlink()

    def remove_layers(self, ids: Iterable[str]) -> None:
        """Delete layers, also with directories that forbid it. Failures are left for next time."""
        for id in ids:
            with contextlib.suppress(OSError):
                remove_tree(self.layers / id)

    def is_empty(self, layer: str) -> bool:
        """Whether a layer holds nothing (its own attributes aside)."""
        try:
            with os.scandir(self.files(layer)) as entries:
                return next(entries, None) is None
        except OSError:
            return True

    def remove(self) -> None:
        """Delete all of it."""
        with contextlib.suppress(FileNotFoundError):
            remove_tree(self.path)


def _is_sound(state: State) -> bool:
    def names(value: object) -> bool:
        return isinstance(value, list) and all(_is_name(one) for one in value)

    def mounted(stacks: object, uppers: object, root_layer: object) -> bool:
        return (
            isinstance(stacks, dict)
            and all(map(names, stacks.values()))
            and isinstance(uppers, dict)
            and all(map(_is_name, uppers.values()))
            and (root_layer == "" or _is_name(root_layer))
        )

    return (
        mounted(state.stacks, state.uppers, state.root_layer)
        and isinstance(state.before, dict)
        and (not state.before or mounted(*(state.before.get(key) for key in _PLACES)))
        and isinstance(state.merged, dict)
        and all(map(names, state.merged.values()))
        and names(state.synced)
        and isinstance(state.since_ns, int)
        and isinstance(state.serial, int)
    )


def _is_name(value: object) -> bool:
    """Whether it is a name of a layer: no path, and nothing that mount(2) would take apart."""
    return isinstance(value, str) and value.isalnum() and value.isascii()
