"""What gives way: orders and protections hold for any session."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import hypothesis.strategies as st
from hypothesis import given

from kernel_runtime.timeline import Capture, Coordinate, Timeline, TimelineState
from kernel_runtime.timeline.retention import (
    RetentionRules,
    charging_order,
    implausible,
    plan_evictions,
    plan_retention,
    plan_room,
)

kinds = st.fixed_dictionaries(
    {
        "reason": st.sampled_from(["cell", "manual", "safety"]),
        "pinned": st.booleans(),
        "label": st.sampled_from([None, "L"]),
        "durable": st.booleans(),
        "size": st.integers(0, 100),
    }
)


def session(add, drawn):
    timeline = Timeline(TimelineState("t" * 32))
    frozen = []
    for given_kind in drawn:
        captures = [Capture("process", "fork", "ready")]
        if given_kind["durable"]:
            captures.append(Capture("namespace", "dill", "ready"))
        named = {key: given_kind[key] for key in ("reason", "pinned", "label")}
        frozen.append((add(timeline, captures=captures, **named), given_kind["size"]))
    return timeline, frozen


@given(drawn=st.lists(kinds, max_size=12), budget=st.integers(0, 500), most=st.integers(0, 12))
def test_evictions(add, drawn, budget, most):
    timeline, frozen = session(add, drawn)
    state = timeline.state
    plan = plan_evictions(
        frozen,
        budget_bytes=budget,
        max_processes=most,
        head=state.head,
        last_safety=state.last_safety,
    )
    sizes = {checkpoint.id: size for checkpoint, size in frozen}
    left = sizes.keys() - set(plan.evict)
    assert len(set(plan.evict)) == len(plan.evict)
    assert plan.bytes_after == sum(sizes[id] for id in left)
    assert plan.processes_after == len(left)
    assert plan.fits == (plan.bytes_after <= budget and len(left) <= most)

    untouchable = {id for id in sizes if timeline[id].pinned} | {state.head, state.last_safety}
    assert not untouchable & set(plan.evict)
    if not plan.fits:
        spare = left - untouchable
        assert not spare or (len(left) <= most and not any(sizes[id] for id in spare))
    if plan.evict:
        # No more than needed: with the last one kept, it would not have fitted.
        last = plan.evict[-1]
        assert plan.bytes_after + sizes[last] > budget or len(left) + 1 > most

    def rank(id):
        checkpoint = timeline[id]
        return (checkpoint.is_kept, not checkpoint.has_durable_session, checkpoint.number)

    assert list(plan.evict) == sorted(plan.evict, key=rank)
    if most >= len(frozen):
        return
    # By number alone, nothing is skipped: what stays ranks behind all that went.
    if not any(size == 0 for size in sizes.values()) and plan.evict:
        assert all(rank(id) > rank(plan.evict[-1]) for id in left - untouchable)


@given(drawn=st.lists(kinds, max_size=12), budget=st.integers(0, 500))
def test_room_is_made_of_what_the_disk_holds_too(add, drawn, budget):
    timeline, frozen = session(add, drawn)
    state = timeline.state
    plan = plan_room(frozen, budget_bytes=budget, head=state.head, last_safety=state.last_safety)
    sizes = {checkpoint.id: size for checkpoint, size in frozen}
    automatic = {
        id
        for id, size in sizes.items()
        if size and not timeline[id].is_kept and id not in (state.head, state.last_safety)
    }
    written = {id for id in automatic if timeline[id].has_durable_session}
    assert set(plan.evict) <= written
    numbers = [timeline[id].number for id in plan.evict]
    assert numbers == sorted(numbers)
    left = sum(sizes.values()) - sum(sizes[id] for id in plan.evict)
    if plan.evict:
        assert left <= budget < left + sizes[plan.evict[-1]], "no more than needed, and enough"
        assert plan.write_first is None
    elif left > budget:
        assert left - sum(sizes[id] for id in written) > budget, "it would have been enough"
        helps = left - sum(sizes[id] for id in automatic) <= budget
        unwritten = sorted(automatic - written, key=lambda id: timeline[id].number)
        assert plan.write_first == (unwritten[0] if helps else None)


@given(drawn=st.lists(kinds, max_size=12), budget=st.integers(0, 500), at=st.integers(0, 11))
def test_room_is_made_of_what_would_go_anyway(add, drawn, budget, at):
    timeline, frozen = session(add, drawn)
    state = timeline.state
    limits = {"budget_bytes": budget, "head": state.head, "last_safety": state.last_safety}
    spared = frozen[at][0].id if at < len(frozen) else None
    sizes = {checkpoint.id: size for checkpoint, size in frozen}
    written = plan_room(frozen, **limits).evict
    plan = plan_room(frozen, **limits, spared=spared, goes_anyway=True)
    assert plan.write_first is None, "there is no time for that"
    left = sum(sizes.values()) - sum(sizes[id] for id in plan.evict)
    if written:
        assert plan.evict == written, "what the disk holds is enough"
        return
    kept = {id for id in sizes if timeline[id].is_kept} | {state.head, state.last_safety}
    assert not kept & set(plan.evict)
    order = [(not timeline[id].has_durable_session, timeline[id].number) for id in plan.evict]
    assert order == sorted(order)
    assert all(timeline[id].has_durable_session for id in plan.evict if id == spared)
    if plan.evict:
        assert left <= budget < left + sizes[plan.evict[-1]], "no more than needed, and enough"
    else:
        spare = sizes.keys() - kept - {spared}
        assert left <= budget or left - sum(sizes[id] for id in spare) > budget or spared in sizes


rules_of = st.builds(
    RetentionRules,
    keep_last=st.none() | st.integers(0, 12),
    hourly=st.none() | st.integers(0, 4),
    daily=st.none() | st.integers(0, 4),
    older_than=st.none() | st.integers(0, 200).map(lambda hours: timedelta(hours=hours)),
    budget_bytes=st.none() | st.integers(0, 500),
)
NOW = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)
moments = st.integers(-300, 30).map(lambda hours: NOW + timedelta(hours=hours))


def history(add, drawn, times):
    """A session whose clock jumps about as it likes; every third is of the present session."""
    timeline, _ = session(add, [])
    sizes = {}
    for index, (kind, moment) in enumerate(zip(drawn, times)):
        named = {key: kind[key] for key in ("reason", "pinned", "label")}
        coordinate = Coordinate("now" if index % 3 == 0 else "then")
        made = add(timeline, created_at=moment, coordinate=coordinate, **named)
        sizes[made.id] = kind["size"]
    return timeline, sizes


@given(
    drawn=st.lists(kinds, max_size=14),
    times=st.lists(moments, min_size=14, max_size=14),
    rules=rules_of,
)
def test_retention(add, drawn, times, rules):
    timeline, sizes = history(add, drawn, times)
    plan = plan_retention(timeline, rules, sizes, now=NOW, epoch="now")
    state, gone = timeline.state, set(plan.delete)
    left = [c for c in timeline if c.id not in gone]
    spare = [c for c in timeline if not c.is_kept and c.id not in (state.head, state.last_safety)]
    assert list(plan.delete) == [c.id for c in spare if c.id in gone]  # oldest first, and no other
    assert plan.bytes_after == sum(sizes[c.id] for c in left)
    assert plan.fits == (rules.budget_bytes is None or plan.bytes_after <= rules.budget_bytes)
    if not plan.fits:
        newest = max(timeline, key=lambda c: c.number)
        assert not any(sizes[c.id] for c in spare if c.id not in gone and c is not newest)
    by_size = rules.budget_bytes is not None
    if not rules.thins and not by_size:
        assert not gone
    if by_size:
        return
    assert not gone & {c.id for c in spare[len(spare) - (rules.keep_last or 0) :]}
    for seconds, count in ((3600, rules.hourly or 0), (86_400, rules.daily or 0)):
        periods = [int(c.created_at.timestamp() // seconds) for c in spare]
        newest_periods = list(dict.fromkeys(reversed(periods)))[:count]
        for period in newest_periods:
            last = [c for c, p in zip(spare, periods) if p == period][-1]
            assert last.id not in gone
    if rules.older_than is not None:
        before = NOW - rules.older_than
        wrong = implausible(timeline, NOW)
        for id in gone:
            assert timeline[id].created_at < before and timeline[id].coordinate.epoch != "now"
            assert id not in wrong
    for id in plan.delete:
        timeline.delete(id)


@given(drawn=st.lists(kinds, max_size=14), data=st.data())
def test_the_charge_is_what_is_freed(add, drawn, data):
    """Delete the oldest one by one: what nobody needs any more is what each was charged with."""
    timeline, _ = session(add, drawn)
    needs = {c.id: set(data.draw(st.lists(st.integers(0, 9), max_size=4))) for c in timeline}
    seen: set[int] = set()
    charges = {}
    for id in charging_order(timeline):
        charges[id] = len(needs[id] - seen)
        seen |= needs[id]
    plan = plan_retention(timeline, RetentionRules(budget_bytes=0), charges, now=NOW)
    kept = {c.id for c in timeline} - set(plan.delete)
    assert plan.bytes_after == len(set().union(*(needs[id] for id in kept)))


def test_store_05_the_clock_goes_back_and_forth(timeline, add):
    times = [(2026, 5, 1, 12), (2020, 1, 1), (2099, 1, 1), (2026, 5, 1, 12, 10)]
    made = [add(timeline, created_at=datetime(*t, tzinfo=timezone.utc)) for t in times]
    add(timeline, created_at=datetime(2026, 5, 1, 12, 20, tzinfo=timezone.utc), comment="head")
    now = datetime(2026, 7, 1, tzinfo=timezone.utc)
    assert [c.id for c in timeline][:4] == [c.id for c in made]
    plan = plan_retention(timeline, RetentionRules(keep_last=2), now=now)
    assert plan.delete == (made[0].id, made[1].id)
    plan = plan_retention(timeline, RetentionRules(older_than=timedelta(days=30)), now=now)
    assert plan.delete == (made[0].id, made[3].id)
    assert plan.doubtful == (made[1].id, made[2].id)
    plan = plan_retention(
        timeline, RetentionRules(older_than=timedelta(days=30)), now=now, epoch="epoch"
    )
    assert plan.delete == ()


def test_durable_captures_are_those_that_outlive_the_supervisor(timeline, add):
    fork = Capture("process", "fork", "ready")
    pending = Capture("process", "image", "pending")
    files = Capture("filesystem", "workspace", "ready")
    assert not add(timeline, captures=[fork, pending, files]).has_durable_session
    assert add(timeline, captures=[fork, Capture("process", "image", "ready")]).has_durable_session
