"""The drawing shows each checkpoint once, below its nearest shown ancestor."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from kernel_runtime.timeline.drawing import rows


def draw(parents, head, shown=None):
    order = list(parents) if shown is None else shown
    return [f"{row.prefix}{row.id}" for row in rows(order, parents, head)]


def test_branches_are_indented_and_the_present_one_runs_down():
    parents = {"1": None, "2": "1", "3": "2", "4": "3", "5": "2", "6": "5"}
    assert draw(parents, "6") == ["○1", "○2", "├─○3", "│ ○4", "○5", "●6"]
    assert draw(parents, "4") == ["○1", "○2", "├─○5", "│ ○6", "○3", "●4"]


def test_branches_of_branches():
    parents = {"1": None, "2": "1", "3": "2", "4": "2", "5": "1"}
    assert draw(parents, "5") == ["○1", "├─○2", "│ ├─○3", "│ ○4", "●5"]


def test_a_hidden_parent_hands_its_children_up():
    parents = {"1": None, "2": "1", "3": "2", "4": "3"}
    assert draw(parents, "3", shown=["1", "4"]) == ["○1", "○4"]
    assert draw(parents, "3", shown=["2", "4"]) == ["○2", "○4"]


@st.composite
def forests(draw_from):
    count = draw_from(st.integers(1, 30))
    parents: dict[str, str | None] = {}
    for number in range(1, count + 1):
        choice = draw_from(st.integers(0, number - 1))
        parents[str(number)] = str(choice) if choice else None
    head = draw_from(st.sampled_from([None, *parents]))
    shown = draw_from(st.lists(st.sampled_from(list(parents)), unique=True))
    return parents, head, sorted(shown, key=int)


@given(forests())
def test_each_is_drawn_once_after_its_ancestor(forest):
    parents, head, shown = forest
    drawn = rows(shown, parents, head)
    assert sorted(row.id for row in drawn) == sorted(shown)
    position = {row.id: index for index, row in enumerate(drawn)}
    for row in drawn:
        ancestor = parents[row.id]
        while ancestor is not None and ancestor not in position:
            ancestor = parents[ancestor]
        assert ancestor is None or position[ancestor] < position[row.id]
        assert row.is_head == (row.id == head) == row.prefix.endswith("●")
    line = set()
    at = head
    while at is not None:
        line.add(at)
        at = parents[at]
    assert {row.id for row in drawn if row.on_present_branch} == line & set(shown)
    assert all(row.depth == 0 for row in drawn if row.on_present_branch)


def test_a_long_chain_takes_no_recursion_and_no_indentation():
    parents = {str(n): str(n - 1) if n else None for n in range(3000)}
    drawn = rows(list(parents), parents, "2999")
    assert {row.depth for row in drawn} == {0}
