"""Which checkpoints give way when room runs out. Pure: it decides, the supervisor acts.

Two decisions, both of them orders that never take the head, the last safety checkpoint or a
pinned one:

- eviction ends a frozen process and keeps the record (what was captured durably stays);
- retention deletes records, the oldest automatic ones first.

Order is by number and never by time, for clocks go back. Time is used as age only, where a rule
asks for it, and then a checkpoint whose time cannot be right is left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from kernel_runtime.later import dataclass
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
    due: Collection[str] = (),
) -> EvictionPlan:
    """Choose frozen processes to end until the rest is within both limits.

    ``frozen`` pairs each checkpoint that has a frozen process with the bytes that only this
    process holds. Order: automatic ones before those that the user asked for or labelled; among
    each, those with a durable capture of the session first; among these, the oldest first.
    Those in ``due`` stay: they are being written, or are about to be because somebody asked.

    The sum is an estimate: pages that two neighbours share become unique to one of them when the
    other goes. Measure again after acting.
    """
    held = list(frozen)
    total = sum(size for _, size in held)
    count = len(held)
    candidates = sorted(
        (
            pair
            for pair in held
            if pair[0].id not in due and not _is_untouchable(pair[0], head, last_safety)
        ),
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


@dataclass(frozen=True)
class RoomPlan:
    """``evict`` in order. Where that cannot be enough it is empty.

    ``write_first`` is then the oldest that stays only because it has no durable capture, if it and
    the others like it would do.
    """

    evict: tuple[str, ...]
    write_first: str | None


def plan_room(
    frozen: Iterable[tuple[Checkpoint, int]],
    *,
    budget_bytes: int,
    head: str | None = None,
    last_safety: str | None = None,
    due: Collection[str] = (),
    spared: str | None = None,
    goes_anyway: bool = False,
) -> RoomPlan:
    """Choose frozen processes to end for memory that is not needed yet, but soon.

    The other arguments are those of `plan_evictions`. As it may turn out not to be needed, only
    automatic ones with a durable capture of the session go, the oldest first, and only if that is
    enough. goes_anyway: the others would be evicted a moment later all the same; then they go too,
    but for ``spared``, where those with such a capture are not enough.
    """
    held = list(frozen)
    excess = sum(size for _, size in held) - budget_bytes
    evict: list[str] = []
    unwritten: list[tuple[str, int]] = []  # these go only where those in evict are not enough
    for checkpoint, size in sorted(held, key=lambda pair: pair[0].number):
        if excess <= 0:
            break
        if (
            size == 0
            or checkpoint.id in due
            or checkpoint.is_kept
            or _is_untouchable(checkpoint, head, last_safety)
        ):
            continue
        if checkpoint.has_durable_session:
            evict.append(checkpoint.id)
            excess -= size
        else:
            unwritten.append((checkpoint.id, size))
    if excess <= 0:
        return RoomPlan(tuple(evict), None)
    if goes_anyway:
        for id, size in unwritten:
            if id != spared and excess > 0:
                evict.append(id)
                excess -= size
        return RoomPlan(tuple(evict) if excess <= 0 else (), None)
    helps = excess <= sum(size for _, size in unwritten)
    return RoomPlan((), unwritten[0][0] if helps else None)


@dataclass(frozen=True)
class RetentionRules:
    """Which automatic checkpoints stay. One that any of the rules keeps, stays.

    keep_last: the newest so many. hourly, daily: of each of the newest so many hours (days, UTC)
    that have one, the last. older_than: those younger than that, those of the present session,
    and those whose time cannot be right. Where none of the four is given all stay, but for
    budget_bytes: while all that is kept takes more, the oldest go, whatever the other rules say.
    """

    keep_last: int | None = None
    hourly: int | None = None
    daily: int | None = None
    older_than: timedelta | None = None
    budget_bytes: int | None = None

    @property
    def thins(self) -> bool:
        """Whether anything goes for another reason than its size."""
        given = (self.keep_last, self.hourly, self.daily, self.older_than)
        return any(rule is not None for rule in given)


@dataclass(frozen=True)
class RetentionPlan:
    """``delete`` in order, the oldest first. ``fits`` is false where what must stay (what the user
    asked for, above all) is over the budget. ``doubtful``: left alone by the rule of age since
    their time cannot be right."""

    delete: tuple[str, ...]
    fits: bool
    bytes_after: int
    doubtful: tuple[str, ...]


def plan_retention(
    timeline: Timeline,
    rules: RetentionRules,
    sizes: Mapping[str, int] | None = None,
    *,
    now: datetime,
    epoch: str | None = None,
) -> RetentionPlan:
    """Choose what to delete.

    Never: the head and the last safety checkpoint (the session may be put back to them at any
    time), what the user asked for, labelled or pinned; by age or size never the newest either.
    Children of what goes are hung on its parent, so nobody needs an ancestor.

    sizes: bytes that are freed with each, if the oldest go first; see `charging_order`. epoch:
    of the session that runs now.
    """
    sizes = sizes or {}
    candidates = [c for c in timeline if _may_go(timeline, c)]
    newest = max(timeline, key=lambda c: c.number).id if len(timeline) else None
    doubtful = implausible(timeline, now) if rules.older_than is not None else frozenset()
    stay = set(sizes.keys() | {c.id for c in candidates})
    if rules.thins:
        kept = _newest(candidates, rules.keep_last or 0)
        kept |= _one_each(candidates, 3600, rules.hourly or 0)
        kept |= _one_each(candidates, 86_400, rules.daily or 0)
        if rules.older_than is not None:
            before = now - rules.older_than
            kept |= {
                c.id
                for c in candidates
                if c.created_at >= before
                or c.id in doubtful
                or c.id == newest
                or c.coordinate.epoch == epoch
            }
        stay -= {c.id for c in candidates} - kept
    total = sum(sizes.get(id, 0) for id in stay)
    budget = rules.budget_bytes
    free: list[str] = []
    for candidate in candidates:
        if budget is None or total <= budget:
            break
        if candidate.id not in stay or candidate.id == newest:
            continue
        free.append(candidate.id)
        if size := sizes.get(candidate.id, 0):
            # older ones that were charged with nothing may need the same: nothing would be freed
            stay.difference_update(free)
            free.clear()
            total -= size
    gone = tuple(c.id for c in candidates if c.id not in stay)
    left = tuple(c.id for c in candidates if c.id in doubtful and c.id in stay)
    return RetentionPlan(gone, budget is None or total <= budget, total, left)


def charging_order(timeline: Timeline) -> list[str]:
    """In which order checkpoints are charged for what they share with others.

    Those that stay whatever happens, then the newest first. If each is charged with what none
    before it has needed, then the charge is what is freed when the oldest go first.
    """
    staying = [c.id for c in timeline if not _may_go(timeline, c)]
    return [*staying, *(c.id for c in reversed(list(timeline)) if _may_go(timeline, c))]


def implausible(timeline: Timeline, now: datetime) -> frozenset[str]:
    """Checkpoints whose time is after now, or before that of an earlier one: the clock was wrong
    then, or is now."""
    return out_of_order([(c.id, c.created_at) for c in timeline], now)


def out_of_order(moments: Iterable[tuple[str, datetime]], now: datetime) -> frozenset[str]:
    """Likewise, of ids and times in the order of their numbers."""
    wrong = set()
    latest = None
    for id, moment in moments:
        if moment > now or (latest is not None and moment < latest):
            wrong.add(id)
        else:
            latest = moment
    return frozenset(wrong)


def _may_go(timeline: Timeline, checkpoint: Checkpoint) -> bool:
    state = timeline.state
    return not checkpoint.is_kept and checkpoint.id not in (state.head, state.last_safety)


def _newest(candidates: Sequence[Checkpoint], count: int) -> set[str]:
    return {c.id for c in candidates[max(0, len(candidates) - max(0, count)) :]}


def _one_each(candidates: Sequence[Checkpoint], seconds: int, count: int) -> set[str]:
    """The last of each period of the newest ``count`` that have one, as they were recorded."""
    found: dict[int, str] = {}
    for checkpoint in reversed(candidates):
        period = int(checkpoint.created_at.timestamp() // seconds)
        if period not in found and len(found) < count:
            found[period] = checkpoint.id
    return set(found.values())


def _is_untouchable(checkpoint: Checkpoint, head: str | None, last_safety: str | None) -> bool:
    return checkpoint.pinned or checkpoint.id in (head, last_safety)
