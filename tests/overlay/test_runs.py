"""Runs of layers in stacks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_runtime.engines.overlay.runs import replace_run, runs_together

STACKS = st.lists(
    st.lists(st.sampled_from("abcdefgh"), max_size=8, unique=True), min_size=1, max_size=5
)


@pytest.mark.parametrize(
    ("stack", "old", "wanted"),
    [
        ("abcd", "bc", "aMd"), ("abcd", "abcd", "M"), ("abcd", "ab", "Mcd"), ("abcd", "cd", "abM"),
        ("abcd", "ac", "abcd"), ("abcd", "cb", "abcd"), ("abcd", "abcde", "abcd"), ("", "ab", ""),
        ("abcd", "b", "aMcd"),
    ],
)  # fmt: skip
def test_replace_run(stack, old, wanted):
    assert replace_run(list(stack), list(old), "M") == list(wanted)


def test_runs_together():
    assert runs_together([list("abcd")]) == [list("abcd")]
    assert runs_together([list("abcd"), list("cd")]) == [list("ab"), list("cd")]
    assert runs_together([list("abcd"), list("xbcd")]) == [list("bcd")]
    assert runs_together([list("abc"), list("ac")]) == []
    assert runs_together([list("abc"), list("ab")]) == [list("ab")]
    assert runs_together([[], ["a"]]) == []
    assert runs_together([]) == []


def holds(stack: list[str], run: list[str]) -> bool:
    return any(stack[n : n + len(run)] == run for n in range(len(stack)))


@given(STACKS)
def test_every_stack_has_them_whole_or_not_at_all(stacks):
    found = runs_together(stacks)
    seen: set[str] = set()
    for run in found:
        assert len(run) >= 2 and seen.isdisjoint(run)
        seen |= set(run)
        for stack in stacks:
            assert holds(stack, run) or set(stack).isdisjoint(run)
    # and they are as long as they can be
    layers = {layer for stack in stacks for layer in stack}
    for run in found:
        for longer in [[one, *run] for one in layers - seen] + [[*run, o] for o in layers - seen]:
            assert not all(holds(s, longer) or set(s).isdisjoint(longer) for s in stacks)


@given(STACKS)
def test_merging_them_keeps_what_stacks_share(stacks):
    """Two stacks are equal afterwards only if they were before; replacing again does nothing."""
    found = runs_together(stacks)
    merged = []
    for stack in stacks:
        for number, run in enumerate(found):
            stack = replace_run(stack, run, f"M{number}")
        merged.append(stack)
        assert not any(layer in run for run in found for layer in stack)
    for one, (before, after) in enumerate(zip(stacks, merged)):
        for other in range(one):
            assert (before == stacks[other]) == (after == merged[other])
