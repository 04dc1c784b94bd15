"""An environment on the disk: its layers, and which of them are in use.

    <store>/environments/<timeline id>/
        state.json                 what is mounted, written before the next cell runs
        layers/<id>/files          an upper directory, or a frozen one
        layers/<id>/work           overlayfs's own, while it is the upper
        layers/<id>/index.json     what it holds (packages.py)
        root/                      the sandbox's / where the user is root (rootdir.py)

A layer that is frozen is never written again. The state file is replaced as a whole: whatever
moment a machine stops at, it names one whole state.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kernel_runtime.errors import EnvironmentRefused
from kernel_runtime.store.paths import private_directory

VERSION = 1


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
    since_ns: int = 0
    """When the host's files were last known to be as the layers expect them."""


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

    def read(self) -> State:
        """The state; a new one if there is none. Raises EnvironmentRefused if it is unreadable."""
        try:
            data = json.loads((self.path / "state.json").read_text())
        except FileNotFoundError:
            return State()
        except (OSError, ValueError) as error:
            raise EnvironmentRefused(
                f"{self.path / 'state.json'} cannot be read ({error}). Nothing was changed; "
                "`jupyter timetravel prune --session` removes this session's environment."
            ) from error
        if data.get("version") != VERSION:
            raise EnvironmentRefused(
                f"{self.path} was written by another version of jupyter_timetravel. It was left "
                "alone; use that version, or choose another store."
            )
        known = set(State.__dataclass_fields__)
        return State(**{k: v for k, v in data.items() if k in known})

    def write(self, state: State, *, durable: bool = False) -> None:
        """Replace the state. durable: not before all that was written is on the disk."""
        temporary = self.path / "state.json.new"
        with open(temporary, "w") as f:
            json.dump(asdict(state), f)
            if durable:
                f.flush()
                os.fsync(f.fileno())
        os.replace(temporary, self.path / "state.json")

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


def remove_tree(path: Path) -> None:
    """rmtree that opens directories that their owner has closed (chmod 0)."""

    def open_up(directory: str) -> None:
        with contextlib.suppress(OSError):
            mode = os.lstat(directory).st_mode
            if stat.S_ISDIR(mode) and mode & 0o700 != 0o700:
                os.chmod(directory, 0o700)

    open_up(str(path))
    for parent, names, _ in os.walk(path, onerror=None):
        for name in names:
            open_up(f"{parent}/{name}")
    shutil.rmtree(path)


def boot_id() -> str:
    """What tells one run of the machine from another."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""
