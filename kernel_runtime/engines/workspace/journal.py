"""The record of a restore at work, by which it can be undone after any crash.

One file for each restore in the journal's directory. It passes through these states, each
durable before what it allows is begun:

    staging    new contents are being made beside the tree: remove them
    applying   names are being changed: undo every step that was made, newest first
    committed  the new tree is complete: remove what was moved away

While its process lives, a lock keeps others from touching it.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Final, Literal

from kernel_runtime.engines.workspace.model import Entry
from kernel_runtime.engines.workspace.names import to_bytes, to_text
from kernel_runtime.engines.workspace.operations import Parts
from kernel_runtime.engines.workspace.tree import decode_row, encode_row
from kernel_runtime.engines.workspace.unfinished import JOURNAL
from kernel_runtime.later import dataclass

_FORMAT: Final = 1

State = Literal["staging", "applying", "committed"]
Identity = tuple[int, int]
"""st_dev and st_ino."""


@dataclass
class Stage:
    """A working directory of a restore, on the filesystem of the names it serves.

    before, after: mode and mtime_ns that the directory in which it lies has without the
    restore, and with it.
    """

    root: int
    parts: Parts
    name: bytes
    before: tuple[int, int]
    after: tuple[int, int]


@dataclass
class Step:
    """One name that is changed. staged: what is put there; None: nothing."""

    root: int
    parts: Parts
    name: bytes
    stage: int
    staged: Identity | None


@dataclass
class OldMeta:
    """What a path had: a directory that is changed, or a file with new metadata. For a
    directory, parts names it and entry.name is empty."""

    root: int
    parts: Parts
    entry: Entry


@dataclass
class Record:
    """The content of a journal file."""

    id: str
    snapshot_id: str
    roots: list[tuple[Path, Identity]]
    state: State = "staging"
    stages: list[Stage] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    metas: list[OldMeta] = field(default_factory=list)


class Journal:
    """One restore's journal file, locked for as long as this object is open."""

    def __init__(self, directory: Path, record: Record, lock_fd: int) -> None:
        self._directory = directory
        self.record = record
        self._lock_fd = lock_fd

    @classmethod
    def begin(
        cls, directory: Path, snapshot_id: str, roots: list[tuple[Path, Identity]]
    ) -> Journal:
        """A new journal; nothing is written before `write`. Raises OSError."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        record = Record(uuid.uuid4().hex, snapshot_id, roots)
        return cls(directory, record, _lock(directory, record.id, wait=True))

    def write(self, state: State) -> None:
        """Make the record durable in this state. Raises OSError; then the old state holds."""
        self.record.state = state
        target = self._directory / f"{JOURNAL}{self.record.id}.json"
        temporary = target.with_suffix(".new")
        with open(temporary, "wb") as file:
            file.write(json.dumps(_encode(self.record)).encode("ascii"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        _sync_directory(self._directory)

    def remove(self) -> None:
        """The restore is over, one way or the other."""
        for suffix in (".json", ".new"):
            with contextlib.suppress(FileNotFoundError):
                (self._directory / f"{JOURNAL}{self.record.id}{suffix}").unlink()
        with contextlib.suppress(FileNotFoundError):
            (self._directory / f"{JOURNAL}{self.record.id}.lock").unlink()
        _sync_directory(self._directory)

    def close(self) -> None:
        """Give up the lock; the file stays if it was not removed."""
        os.close(self._lock_fd)


def interrupted(directory: Path, damaged: list[Path]) -> Iterator[Journal]:
    """Journals of restores whose process has ended; close each. Raises OSError.

    Adds to damaged the files that are no journals.
    """
    if not directory.is_dir():
        return
    for file in sorted(directory.glob(f"{JOURNAL}*.json")):
        identity = file.stem[len(JOURNAL) :]
        try:
            lock = _lock(directory, identity, wait=False)
        except BlockingIOError:
            continue
        try:
            record = _decode(identity, json.loads(file.read_bytes()))
        except FileNotFoundError:  # its process has just come to its end
            os.close(lock)
            file.with_suffix(".lock").unlink(missing_ok=True)
            continue
        except (ValueError, KeyError, TypeError):
            os.close(lock)
            damaged.append(file)
            continue
        yield Journal(directory, record, lock)


def _lock(directory: Path, identity: str, *, wait: bool) -> int:
    import fcntl  # not on Windows, where this module must import too

    path = directory / f"{JOURNAL}{identity}.lock"
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(fd)
        raise
    return fd


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _texts(parts: Parts) -> list[str]:
    return [to_text(part) for part in parts]


def _parts(texts: list[str]) -> Parts:
    return tuple(to_bytes(text) for text in texts)


def _encode(record: Record) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "snapshot": record.snapshot_id,
        "state": record.state,
        "roots": [[to_text(os.fsencode(path)), *identity] for path, identity in record.roots],
        "stages": [
            [one.root, _texts(one.parts), to_text(one.name), one.before, one.after]
            for one in record.stages
        ],
        "steps": [
            [one.root, _texts(one.parts), to_text(one.name), one.stage, one.staged]
            for one in record.steps
        ],
        "metas": [[one.root, _texts(one.parts), _row(one.entry)] for one in record.metas],
    }


def _row(entry: Entry) -> list[Any]:
    row = encode_row(entry)
    row[0] = "=" + row[0]  # a directory has no name here, a row must have one
    return row


def _decode(identity: str, value: dict[str, Any]) -> Record:
    if value["format"] != _FORMAT:
        raise ValueError(f"journal of format {value['format']}")
    metas: list[OldMeta] = []
    for root, parts, row in value["metas"]:
        entry = decode_row(row)
        metas.append(OldMeta(root, _parts(parts), replace(entry, name=entry.name[1:])))
    return Record(
        identity,
        value["snapshot"],
        [(Path(os.fsdecode(to_bytes(path))), (dev, ino)) for path, dev, ino in value["roots"]],
        value["state"],
        [Stage(r, _parts(p), to_bytes(n), (*b,), (*a,)) for r, p, n, b, a in value["stages"]],
        [
            Step(r, _parts(p), to_bytes(n), stage, None if staged is None else tuple(staged))
            for r, p, n, stage, staged in value["steps"]
        ],
        metas,
    )
