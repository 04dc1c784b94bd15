"""Which other checkpoint can be taken where what one has on the disk is damaged.

Named only after all that it needs was read and hashed: what is damaged is often shared with the
checkpoints beside it. Nothing is loaded.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kernel_runtime.engines.charges import Stores
from kernel_runtime.store.digests import Digest
from kernel_runtime.store.errors import StoreError
from kernel_runtime.timeline.model import Capture, Checkpoint

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

_MOST_S: Final = 20.0
"""Seconds after which no further checkpoint is looked at."""
_NOBODYS: Final = ("start", "restart", "safety", "part")
"""Reasons of checkpoints that no cell and nobody made: of a fresh process, or of the present."""


async def way_to_another(
    session: Session, target: Checkpoint, only: str | None, names: Collection[str] = ()
) -> str:
    """In words, after a space: the nearest checkpoint that is whole; "" if there is none.

    only: ``files``, ``process``, or None for both. names: variables that it has to have.
    """
    directory = session.persistence.directory
    if directory is None:
        return ""
    wanted = []
    for one in _by_distance(session, target, names):
        captures = _needed(session, one, only)
        if captures is not None:
            wanted.append((one, captures))
    found = await asyncio.to_thread(_first_whole, directory, wanted)
    if found is None:
        return ""
    how = f"%restore {found.number}"
    if names:
        how += f" --vars {','.join(sorted(names))}"
        return f" The nearest checkpoint that holds it whole is #{found.number}: `{how}`."
    how += f" --only {only}" if only else ""
    return f" The nearest checkpoint that is whole is #{found.number}: `{how}`."


def _by_distance(
    session: Session, target: Checkpoint, names: Collection[str]
) -> Iterable[Checkpoint]:
    """The others, the nearest first; of two as near the earlier one."""
    others = [
        c
        for c in session.timeline
        if c.id != target.id and c.reason not in _NOBODYS and set(names) <= set(c.variables)
    ]
    return sorted(others, key=lambda c: (abs(c.number - target.number), c.number))


def _needed(session: Session, one: Checkpoint, only: str | None) -> list[Capture] | None:
    """The captures that a restore would read from the disk; None if it has not all of them."""
    needed = []
    if only != "files" and one.id not in session.frozen:
        needed.append(one.capture("namespace"))
    if only != "process" and session.files.enabled:
        needed.append(one.capture("filesystem", engine="workspace"))
    ready = [c for c in needed if c is not None and c.state == "ready" and c.ref]
    return ready if len(ready) == len(needed) else None


def _first_whole(
    directory: Path, wanted: Iterable[tuple[Checkpoint, list[Capture]]]
) -> Checkpoint | None:
    """The first of which every blob is there and has its hash. Never raises."""
    good: set[str] = set()
    end = time.monotonic() + _MOST_S
    try:
        stores = Stores(directory)
        held = set(os.listdir(stores.files.path / "held"))
        for checkpoint, captures in wanted:
            needs = stores.needs([replace(checkpoint, captures=tuple(captures))])
            try:
                for digest in needs.files - held - good:
                    stores.files.get(Digest(digest))
                    good.add(digest)
                for digest in needs.namespaces - good:
                    stores.namespaces.get(digest)
                    good.add(digest)
                for capture in captures:
                    if capture.kind == "namespace":
                        stores.namespaces.manifest(capture.ref or "")
            except StoreError:
                if time.monotonic() > end:
                    return None
                continue
            return checkpoint
    except (StoreError, OSError):
        pass  # it is an offer only
    return None
