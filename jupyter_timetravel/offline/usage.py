"""``jupyter timetravel du``: the room that each notebook's checkpoints take, and share.

What several checkpoints or notebooks have in common is stored once. So a notebook's bytes are told
apart: those that only it needs, which deleting it gives back, and those that others need too.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterable, Set
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.offline import stored
from jupyter_timetravel.offline.environment import StoredEnvironment, overlay_of
from jupyter_timetravel.offline.tables import table
from kernel_runtime.engines.charges import Needs, Stores, room_of
from kernel_runtime.errors import EnvironmentRefused
from kernel_runtime.store.database import Store, TimelineInfo
from kernel_runtime.timeline import Checkpoint
from kernel_runtime.timeline.retention import charging_order
from kernel_runtime.timeline.text import size_text

SUMMARY = "tell how much room the checkpoints of each notebook take"


@dataclass
class Row:
    """One session, in bytes on the disk."""

    id: str
    notebook: str | None
    exists: bool
    checkpoints: int
    unique_bytes: int
    shared_bytes: int
    environment_bytes: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    stored.add_store(parser)


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    with stored.opened(args) as store:
        rows, total = survey(store)
    cells = [(size_text(total["shared_bytes"]), "", "", "", "(shared by several, counted once)")]
    cells += [(size_text(total["unneeded_bytes"]), "", "", "", "(nobody needs it: prune)")]
    cells += [(size_text(total["other_bytes"]), "", "", "", "(the list of checkpoints, and more)")]
    shown = table(_HEAD, [*map(_cells, rows), *(row for row in cells if row[0] != "0 B")])
    text = f"{shown}\n\n{size_text(total['store_bytes'])} in {store.directory}"
    tell(args, text, {"sessions": [asdict(row) for row in rows], **total})
    return 0


_HEAD = ("ITS OWN", "SHARED", "ENVIRONMENT", "CHECKPOINTS", "NOTEBOOK")


def _cells(row: Row) -> tuple[str, ...]:
    gone = "" if row.exists or not row.notebook else "  (the notebook is gone)"
    return (
        size_text(row.unique_bytes),
        size_text(row.shared_bytes),
        size_text(row.environment_bytes),
        str(row.checkpoints),
        (row.notebook or f"session {row.id[:12]}") + gone,
    )


def survey(store: Store) -> tuple[list[Row], dict[str, int]]:
    """One row for each session, and sums: all in bytes on the disk."""
    stores = Stores(store.directory)
    infos = store.timelines()
    needs = {info.id: stores.needs(store.look_at(info.id)) for info in infos}
    users: Counter[str] = Counter()
    for need in needs.values():
        users.update(need.files | need.namespaces)
    shared = {name for name, count in users.items() if count > 1}
    rows = [_row(stores, info, needs[info.id], shared) for info in infos]
    everything = room_of([store.directory])
    all_needs = Needs()
    for need in needs.values():
        all_needs.files |= need.files
        all_needs.namespaces |= need.namespaces
    needed = stores.room(all_needs.files, all_needs.namespaces)
    unneeded = stores.unneeded(all_needs)
    environments = sum(row.environment_bytes for row in rows)
    return rows, {
        "shared_bytes": needed - sum(row.unique_bytes for row in rows),
        "unneeded_bytes": unneeded,
        "other_bytes": everything - environments - needed - unneeded,
        "store_bytes": everything,
    }


def _row(stores: Stores, info: TimelineInfo, needs: Needs, shared: Set[str]) -> Row:
    return Row(
        id=info.id,
        notebook=info.path,
        exists=info.path is not None and os.path.exists(info.path),
        checkpoints=info.checkpoints,
        unique_bytes=stores.room(needs.files - shared, needs.namespaces - shared),
        shared_bytes=stores.room(needs.files & shared, needs.namespaces & shared),
        environment_bytes=room_of([stores.directory / "environments" / info.id]),
    )


def charges(store: Store, stores: Stores, info: TimelineInfo, known: Needs) -> dict[str, int]:
    """What each checkpoint of a timeline adds to what those before it need."""
    timeline = store.look_at(info.id)
    directory = store.directory / "environments" / info.id
    environment: StoredEnvironment | None = None
    with suppress(EnvironmentRefused):
        environment = StoredEnvironment(directory)

    def layers_of(checkpoint: Checkpoint) -> Iterable[Path]:
        capture = overlay_of(checkpoint)
        if environment is None or capture is None:
            return []
        stacks = environment.stacks_of(capture).values()
        return [directory / "layers" / layer for stack in stacks for layer in stack]

    return stores.charges([timeline[id] for id in charging_order(timeline)], layers_of, known)


def last_used(store: Store, info: TimelineInfo) -> datetime:
    """When the newest checkpoint of a session was made, as recorded."""
    return max([info.created_at, *(c.created_at for c in store.look_at(info.id))])
