"""Which checkpoints give way when room runs out. Pure: it decides, the supervisor acts.

Two decisions, both of them orders that never take the head, the last safety checkpoint or a
pinned one:

- eviction ends a frozen process and keeps the record (what was captured durably stays);
- pruning deletes records, the oldest automatic ones first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernel_runtime.timeline.model import Checkpoint
from kernel_runtime.timeline.tree import Timeline


@dataclass(frozen=True)
class EvictionPlan:
    """``evict`` in order. ``fits`` is false where what may not be evicted is over the limit."""

    evict: tuple[str, ...]
    fits: bool
    bytes_after: int
    processes_after: int


def plan_evictions(
    frozen: Iterable[tuple[Checkpoint, int]],
    *,
    budget_bytes: int,
    max_processes: int,
    head: str | None = None,
    last_safety: str | None = None,
) -> EvictionPlan:
    """Choose frozen processes to end until the rest is within both limits.

    ``frozen`` pairs each checkpoint that has a frozen process with the bytes that only this
    process holds. Order: automatic ones before those that the user asked for or labelled; among
    each, those with a durable capture of the session first; among these, the oldest first.

    The sum is an estimate: pages that two neighbours share become unique to one of them when the
    other goes. Measure again after acting.
    """
    held = list(frozen)
    total = sum(size for _, size in held)
    count = len(held)
    candidates = sorted(
        (pair for pair in held if not _is_untouchable(pair[0], head, last_safety)),
        key=lambda pair: (pair[0].is_kept, not pair[0].has_durable_session, pair[0].number),
    )
    evict: list[str] = []
    for checkpoint, size in candidates:
        if total <= budget_bytes and count <= max_processes:
            break
        if count <= max_processes and size == 0:
            continue  # ending it would lose a checkpoint and free nothing
        evict.append(checkpoint.id)
        total -= size
        count -= 1
    return EvictionPlan(
        evict=tuple(evict),
        fits=total <= budget_bytes and count <= max_processes,
        bytes_after=total,
        processes_after=count,
    )


def plan_pruning(timeline: Timeline, *, keep_automatic: int) -> Sequence[str]:
    """Ids to delete, oldest first, so that at most ``keep_automatic`` automatic ones remain.

    Those that the user asked for or labelled, the head and the last safety checkpoint neither
    count nor go. The order is by number: age is no measure, for clocks go back.
    """
    state = timeline.state
    automatic = [
        checkpoint.id
        for checkpoint in timeline
        if not checkpoint.is_kept and checkpoint.id not in (state.head, state.last_safety)
    ]
    return automatic[: max(0, len(automatic) - max(0, keep_automatic))]


def _is_untouchable(checkpoint: Checkpoint, head: str | None, last_safety: str | None) -> bool:
    return checkpoint.pinned or checkpoint.id in (head, last_safety)
