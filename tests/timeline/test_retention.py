"""What gives way: orders and protections hold for any session."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from kernel_runtime.timeline import (
    Capture,
    Timeline,
    TimelineState,
    plan_evictions,
    plan_pruning,
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


@given(drawn=st.lists(kinds, max_size=12), keep=st.integers(0, 12))
def test_pruning(add, drawn, keep):
    timeline, _ = session(add, drawn)
    gone = plan_pruning(timeline, keep_automatic=keep)
    state = timeline.state
    assert list(gone) == sorted(gone, key=lambda id: timeline[id].number)
    for id in gone:
        assert not timeline[id].is_kept and id not in (state.head, state.last_safety)
        timeline.delete(id)
    spare = [c for c in timeline if not c.is_kept and c.id not in (state.head, state.last_safety)]
    assert len(spare) <= keep
    assert not gone or len(spare) == keep


def test_durable_captures_are_those_that_outlive_the_supervisor(timeline, add):
    fork = Capture("process", "fork", "ready")
    pending = Capture("process", "image", "pending")
    files = Capture("filesystem", "workspace", "ready")
    assert not add(timeline, captures=[fork, pending, files]).has_durable_session
    assert add(timeline, captures=[fork, Capture("process", "image", "ready")]).has_durable_session
