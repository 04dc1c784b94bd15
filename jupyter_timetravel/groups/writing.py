"""Who wrote what in a directory that members share: read from the store.

The snapshots of all members are put into one order of time; what differs between two that follow
each other was written by whoever was at work meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as Directory
from typing import Final

from kernel_runtime.engines.workspace.diff import differences
from kernel_runtime.engines.workspace.errors import SnapshotUnknown
from kernel_runtime.engines.workspace.snapshots import Manifest, read_manifest
from kernel_runtime.engines.workspace.tree import Reader, TreeDamaged
from kernel_runtime.store.blobs import BlobError, BlobStore
from kernel_runtime.timeline import Checkpoint, Timeline
from kernel_runtime.timeline.groups import Alone, Doing, Path, Step

FOREVER: Final = float("inf")


@dataclass(frozen=True)
class Shared:
    """What was written since a snapshot. differing: what differs from it now."""

    roots: tuple[Directory, ...]
    differing: frozenset[Path]
    steps: tuple[Step, ...]


def snapshot_of(checkpoint: Checkpoint) -> str | None:
    """The snapshot of the workspace that a checkpoint holds."""
    capture = checkpoint.capture("filesystem", engine="workspace")
    return capture.ref if capture is not None and capture.state == "ready" else None


def doings(
    timelines: Mapping[str, Timeline], since: float, alone: Sequence[Alone]
) -> Iterable[Doing]:
    """When each member ran a cell or was restored, as far as the store tells it.

    since: seconds since the epoch; what was over by then is left out.
    """
    ends = {one.safety: one.ended_at for one in alone}
    for name, timeline in timelines.items():
        known = sorted(timeline, key=_made)
        for number, checkpoint in enumerate(known):
            for cell in checkpoint.cells:
                if cell.started_at + cell.duration_s > since:
                    yield Doing(name, cell.started_at, cell.started_at + cell.duration_s)
            if checkpoint.reason == "safety":
                # a restore follows it, which changes files too; how long it took is not written
                after = known[number + 1 :]
                end = ends.get(checkpoint.id) or (_made(after[0]) if after else FOREVER)
                if end > since:
                    yield Doing(name, _made(checkpoint), end)


def shared_since(
    blobs: BlobStore,
    timelines: Mapping[str, Timeline],
    base: Checkpoint,
    since: float,
    present: Checkpoint,
) -> Shared | None:
    """What was written from a checkpoint to another of the same member; None if it has no files.

    since: when the first of the two was made, in seconds since the epoch: whoever was at work
    before is not meant. Raises SnapshotUnknown.
    """
    first, last = snapshot_of(base), snapshot_of(present)
    if first is None or last is None:
        return None
    before, now = read_manifest(blobs, first), read_manifest(blobs, last)
    roots = tuple(root for root, _ in before.roots)
    between = sorted(
        (
            one
            for timeline in timelines.values()
            for one in timeline
            if since < _made(one) < _made(present)
        ),
        key=_made,
    )
    steps: list[Step] = []
    at, after = before, since
    for checkpoint in [*between, present]:
        manifest = now if checkpoint is present else _comparable(blobs, checkpoint, roots)
        if manifest is None:
            continue
        steps.append(Step(after, _made(checkpoint), _differing(blobs, at, manifest)))
        at = manifest
        ended = [cell.started_at + cell.duration_s for cell in checkpoint.cells]
        after = max([after, *ended])
    return Shared(roots, _differing(blobs, before, now), tuple(steps))


def still_as(
    blobs: BlobStore, then: Checkpoint, present: Checkpoint, paths: Iterable[Path]
) -> frozenset[Path]:
    """Those of the paths that are as they were at another checkpoint. Raises SnapshotUnknown."""
    last = snapshot_of(present)
    now = read_manifest(blobs, last) if last is not None else None
    before = _comparable(blobs, then, tuple(root for root, _ in now.roots)) if now else None
    if before is None or now is None:
        return frozenset()
    return frozenset(paths) - _differing(blobs, before, now)


def _comparable(
    blobs: BlobStore, checkpoint: Checkpoint, roots: tuple[Directory, ...]
) -> Manifest | None:
    """Its snapshot, if it is of the same directories and still there."""
    snapshot = snapshot_of(checkpoint)
    if snapshot is None:
        return None
    try:
        found = read_manifest(blobs, snapshot)
    except SnapshotUnknown:
        return None  # the step is longer then, and more members were at work in it
    return found if tuple(root for root, _ in found.roots) == roots else None


def _differing(blobs: BlobStore, a: Manifest, b: Manifest) -> frozenset[Path]:
    reader = Reader.of(blobs)
    found: set[Path] = set()
    try:
        for number, ((_, old), (_, new)) in enumerate(zip(a.roots, b.roots)):
            for change in differences(reader, number, old, new):
                found.add((number, change.path))
                if change.old_path is not None:
                    found.add((number, change.old_path))
    except (BlobError, TreeDamaged) as cause:
        raise SnapshotUnknown(b.id, str(cause)) from cause
    return frozenset(found)


def _made(checkpoint: Checkpoint) -> float:
    return checkpoint.created_at.timestamp()
