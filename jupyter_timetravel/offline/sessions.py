"""``jupyter timetravel sessions``: every session that the store holds, and what it takes."""

from __future__ import annotations

import argparse
import os
import shutil
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.offline import stored
from jupyter_timetravel.offline.tables import age_text, table
from kernel_runtime.engines.charges import room_of
from kernel_runtime.store.database import Store, TimelineInfo
from kernel_runtime.timeline.text import one_line, plural, size_text

SUMMARY = "list the sessions whose checkpoints are kept, and the room that they take"


@dataclass
class Row:
    """One session."""

    id: str
    notebook: str | None
    exists: bool
    kernel: str
    created_at: str
    last_at: str
    checkpoints: int
    in_use: bool
    environment_bytes: int
    aside: bool
    """Another notebook has taken its name since."""
    imported: str
    """"" if it was made here, else "trusted" or "not trusted"."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    stored.add_store(parser)


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    with stored.opened(args) as store:
        rows = [_row(store, info) for info in store.timelines()]
        known = {row.id for row in rows}
        environments = store.directory / "environments"
        left = [p for p in _below(environments) if p.name not in known]
        workspace = room_of([store.directory / name for name in ("blobs", "sealed", "held")])
        total = {
            "store": str(store.directory),
            "sessions": [asdict(row) for row in rows],
            "workspace_bytes": workspace,
            "left_over": [str(path) for path in left],
            "left_over_bytes": room_of(left),
            "free_bytes": shutil.disk_usage(store.directory).free,
        }
    lines = [table(_HEAD, [_cells(row) for row in rows]) if rows else "no sessions"]
    lines.append(f"\nFiles of all workspaces take {size_text(workspace)} in {store.directory}.")
    if left:
        lines.append(
            f"{plural(len(left), 'environment')} of sessions that are gone: "
            f"{size_text(room_of(left))}; `jupyter timetravel prune` deletes them."
        )
    tell(args, "\n".join(lines), total)
    return 0


_HEAD = ("NOTEBOOK", "KERNEL", "LAST USED", "CHECKPOINTS", "ENVIRONMENT", "", "ID")


def _row(store: Store, info: TimelineInfo) -> Row:
    newest: datetime = info.created_at
    for checkpoint in store.look_at(info.id):
        newest = max(newest, checkpoint.created_at)
    is_kept = stored.is_aside(info) or info.origin is not None
    trusted = "trusted" if info.origin and info.origin.trusted else "not trusted"
    return Row(
        id=info.id,
        notebook=info.path or (stored.name_of(info) if is_kept else None),
        exists=info.path is not None and os.path.exists(info.path),
        kernel=info.kernel_name,
        created_at=info.created_at.isoformat(),
        last_at=newest.isoformat(),
        checkpoints=info.checkpoints,
        in_use=info.in_use,
        environment_bytes=room_of([store.directory / "environments" / info.id]),
        aside=stored.is_aside(info),
        imported=trusted if info.origin is not None else "",
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        one_line(row.notebook or "(no notebook)", 200),
        one_line(row.kernel, 60),
        age_text(datetime.fromisoformat(row.last_at)),
        str(row.checkpoints),
        size_text(row.environment_bytes),
        _state(row),
        row.id[:12],
    )


def _state(row: Row) -> str:
    if row.in_use:
        return "in use"
    if row.aside:
        return "another notebook has its name"
    if row.imported and not (row.exists and row.imported == "trusted"):
        return f"imported, {row.imported}"
    return "" if row.exists or not row.notebook else "notebook gone"


def _below(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []
