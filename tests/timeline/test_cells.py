"""Cells along the tree of checkpoints: which lead where, and what of them can be run again."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from kernel_runtime.errors import BadRequest
from kernel_runtime.timeline import Coordinate, Timeline, TimelineState
from kernel_runtime.timeline.cells import (
    Cell,
    along,
    difference,
    from_fresh,
    left_behind,
    portable,
    runnable,
)


def cell(source, **fields):
    known = {"outcome": "ok", "ename": None, "started_at": 0.0, "duration_s": 0.0}
    return Cell(source, source, None, 1, **{**known, **fields})


@pytest.fixture
def tree():
    """#0 start, #1 a, #2 b, then from #1: #3 c."""
    timeline = Timeline(TimelineState("t", next_number=0))

    def add(reason, *sources):
        return timeline.add(
            created_at=datetime.now(timezone.utc),
            reason=reason,
            coordinate=Coordinate("e"),
            cells=map(cell, sources),
        )

    add("start")
    first = add("cell", "a")
    add("cell", "b")
    timeline.move_head(first.id)
    add("cell", "c")
    timeline.add_one = add
    return timeline


def names(placed):
    return [one.cell.source for one in placed]


def test_paths(tree):
    zero, one, two, three = tree
    assert names(along(tree, None, three.id)) == ["a", "c"]
    assert names(along(tree, one.id, two.id)) == ["b"]
    assert names(along(tree, None, None)) == []
    with pytest.raises(BadRequest, match="#3 does not descend from #2"):
        list(along(tree, two.id, three.id))
    assert names(left_behind(tree, three.id, two.id)) == ["c"]
    assert names(left_behind(tree, three.id, zero.id)) == ["a", "c"]
    assert names(left_behind(tree, one.id, three.id)) == []


def test_what_ran_in_a_process_before_is_not_of_this_one(tree):
    tree.add_one("restart", "last words")
    assert names(from_fresh(tree, tree.state.head)) == []
    tree.add_one("cell", "d")
    assert names(from_fresh(tree, tree.state.head)) == ["d"]


def test_the_cells_of_a_deleted_checkpoint_go_to_each_child(tree):
    _, one, two, three = tree
    gone = tree.delete(one.id)
    assert {c.id for c in gone.rehung} == {two.id, three.id}
    assert names(along(tree, None, two.id)) == ["a", "b"]
    assert names(along(tree, None, three.id)) == ["a", "c"]


@pytest.mark.parametrize(
    ("source", "again", "elsewhere"),
    [
        ("x = 1", "x = 1", "x = 1"),
        ("%restore 3", "", ""),
        ("x = 1\n%replay 3\ny = 2", "x = 1", "x = 1"),
        ("%checkpoint 'a'", "", ""),
        ("x = 1\n%checkpoint a", "x = 1\n%checkpoint a", "x = 1"),
        ("if bad:\n    %restore 1\ny = 2", "if bad:\n    pass\ny = 2", "if bad:\n    pass\ny = 2"),
        ("t = '''\n%restore 1\n'''", "t = '''\n%restore 1\n'''", "t = '''\n%restore 1\n'''"),
        ("%%transaction\nx = 1", "%%transaction\nx = 1", "x = 1"),
        ("%%time\nx = 1", "%%time\nx = 1", "%%time\nx = 1"),
        ("%load_ext jupyter_timetravel", "", ""),
        ("%matplotlib inline", "%matplotlib inline", "%matplotlib inline"),
        ("", "", ""),
    ],
)
def test_what_of_a_cell_is_run_again(source, again, elsewhere):
    assert runnable(source) == again
    assert portable(source) == elsewhere


def test_differences():
    assert difference(cell("x"), cell("x")) is None
    bad = cell("x", outcome="error", ename="ValueError")
    assert difference(bad, bad) is None
    assert difference(cell("x"), bad) == "ok before, ValueError now"
    assert (
        difference(cell("x", result="<A at 0x7f00112233>"), cell("x", result="<A at 0x7fffff>"))
        is None
    )
    assert "was 1, and is 2 now" in difference(cell("x", result="1"), cell("x", result="2"))
