"""The tree, its names and its deletions, against a plain model of parents and numbers."""

from __future__ import annotations

import json
from datetime import datetime

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kernel_runtime.errors import BadRequest, UnknownCheckpoint
from kernel_runtime.timeline import (
    Capture,
    Coordinate,
    DeleteRefused,
    Note,
    Timeline,
    TimelineState,
    from_record,
)


class TreeMachine(RuleBasedStateMachine):
    """Random life of a session; ``parents`` is the model."""

    def __init__(self, add) -> None:
        super().__init__()
        self.add_to = add
        self.timeline = Timeline(TimelineState("t" * 32))
        self.parents: dict[str, str | None] = {}
        self.pinned: set[str] = set()
        self.head: str | None = None
        self.numbers: list[int] = []

    def some(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(list(self.parents)))

    @rule(comment=st.sampled_from(["", "a", "b", "12", "-1"]), root=st.booleans())
    def add(self, comment: str, root: bool) -> None:
        checkpoint = self.add_to(
            self.timeline, comment=comment, **({"parent": None} if root else {})
        )
        assert checkpoint.number > max(self.numbers, default=0)
        self.numbers.append(checkpoint.number)
        self.parents[checkpoint.id] = None if root else self.head
        self.head = checkpoint.id

    @precondition(lambda self: self.parents)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        self.head = self.some(data)
        self.timeline.move_head(self.head)

    @precondition(lambda self: self.parents)
    @rule(data=st.data(), pinned=st.booleans())
    def pin(self, data: st.DataObject, pinned: bool) -> None:
        id = self.some(data)
        assert self.timeline.replace(id, pinned=pinned).pinned == pinned
        (self.pinned.add if pinned else self.pinned.discard)(id)

    @precondition(lambda self: self.parents)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        id = self.some(data)
        if id == self.head or id in self.pinned:
            with pytest.raises(DeleteRefused):
                self.timeline.delete(id)
            return
        deleted = self.timeline.delete(id)
        parent = self.parents.pop(id)
        children = [child for child, its_parent in self.parents.items() if its_parent == id]
        for child in children:
            self.parents[child] = parent
        assert [child.id for child in deleted.rehung] == children

    @invariant()
    def is_the_model(self) -> None:
        assert self.timeline.parents() == self.parents
        assert (self.timeline.head.id if self.timeline.head else None) == self.head
        numbers = [checkpoint.number for checkpoint in self.timeline]
        assert numbers == sorted(numbers)

    @invariant()
    def history_follows_the_parents(self) -> None:
        for id in self.parents:
            line = []
            parent = self.parents[id]
            while parent is not None:
                line.insert(0, parent)
                parent = self.parents[parent]
            assert self.timeline.history(id) == line

    @invariant()
    def children_are_the_parents_reversed(self) -> None:
        seen = [c.id for p in (None, *self.parents) for c in self.timeline.children(p)]
        assert sorted(seen) == sorted(self.parents)

    @invariant()
    def every_name_finds_its_checkpoint(self) -> None:
        for checkpoint in self.timeline:
            assert self.timeline.resolve(checkpoint.number) is checkpoint
            assert self.timeline.resolve(f"#{checkpoint.number}") is checkpoint
            assert self.timeline.resolve(checkpoint.id) is checkpoint
            assert self.timeline.resolve(checkpoint.id[:20]) is checkpoint
        for back, checkpoint in enumerate(reversed(self.timeline.present_branch()), 1):
            assert self.timeline.resolve(-back) is checkpoint
        for comment in ("a", "b"):
            bearing = [c for c in self.timeline if c.comment == comment]
            if bearing:
                if len(bearing) == 1:
                    assert self.timeline.resolve(comment) is bearing[0]
                else:
                    with pytest.raises(UnknownCheckpoint, match="by its number"):
                        self.timeline.resolve(comment)

    @invariant()
    def survives_being_taken_apart(self) -> None:
        again = Timeline(self.timeline.state, list(self.timeline))
        assert again.state == self.timeline.state
        assert list(again) == list(self.timeline)
        assert again.parents() == self.parents


def test_any_life_of_a_session(add):
    run_state_machine_as_test(lambda: TreeMachine(add))


def test_a_restore_begins_a_branch(timeline, add):
    first, second, third = (add(timeline) for _ in range(3))
    timeline.move_head(first.id)
    fourth = add(timeline)
    assert timeline.children(first.id) == (second, fourth)
    assert timeline.present_branch() == [first, fourth]
    assert timeline.resolve(-2) is first
    assert timeline.history(third.id) == [first.id, second.id]


def test_undo_and_undo_of_undo(timeline, add):
    add(timeline)
    two = add(timeline)
    safety = add(timeline, reason="safety")
    timeline.move_head(two.id)
    target = timeline.last_safety
    assert target is safety
    second_safety = add(timeline, reason="safety")
    assert timeline.last_safety is second_safety
    timeline.delete(safety.id)
    assert timeline.last_safety is second_safety
    timeline.move_head(two.id)
    timeline.delete(second_safety.id)
    assert timeline.last_safety is None


def test_a_label_is_found_before_a_comment_and_the_newest_wins(timeline, add):
    labelled = add(timeline, label="join")
    add(timeline, comment="join")
    assert timeline.resolve(" join ") is timeline[labelled.id]
    newer = add(timeline, label="join")
    assert timeline.resolve("join") is newer
    timeline.replace(newer.id, label=None)
    assert timeline.resolve("join").id == labelled.id


def test_a_number_as_a_comment_is_found_only_where_no_number_is(timeline, add):
    bears = add(timeline, comment="7")
    assert timeline.resolve("7") is bears
    for _ in range(6):
        add(timeline)
    assert timeline.resolve("7").number == 7


@pytest.mark.parametrize("spec", [0, "0", -4, 99, "nothing", "", " ", True, "-0", 10**30, "abc"])
def test_what_names_nothing_is_unknown(timeline, add, spec):
    for _ in range(3):
        add(timeline)
    with pytest.raises(UnknownCheckpoint):
        timeline.resolve(spec)


def test_the_error_names_what_is_near(timeline, add):
    with pytest.raises(UnknownCheckpoint, match="none yet"):
        timeline.resolve(1)
    for _ in range(9):
        add(timeline)
    add(timeline, comment="before the join")
    with pytest.raises(UnknownCheckpoint, match="#8, #9, #10"):
        timeline.resolve(99)
    with pytest.raises(UnknownCheckpoint, match="'before the join'"):
        timeline.resolve("before the jion")


def test_an_ambiguous_prefix_is_told(timeline, add):
    add(timeline, id="abcdef" + "1" * 26)
    add(timeline, id="abcdef" + "2" * 26)
    with pytest.raises(UnknownCheckpoint, match="#1, #2"):
        timeline.resolve("abcdef")
    assert timeline.resolve("ABCDEF1").number == 1


@pytest.mark.parametrize("label", ["", "  ", "12", "#12", "-3", "+1", "a\0b", "\ud800"])
def test_labels_that_could_not_be_found_again_are_refused(timeline, add, label):
    with pytest.raises(BadRequest):
        add(timeline, label=label)
    assert len(timeline) == 0
    assert timeline.state.next_number == 1


@pytest.mark.parametrize("comment", ["a\0b", "\ud800"])
def test_comments_that_no_store_holds_are_refused(timeline, add, comment):
    with pytest.raises(BadRequest, match="Nothing was done"):
        add(timeline, comment=comment)


def test_other_comments_are_kept_exactly(timeline, add):
    for comment in [
        "",
        "  ",
        "two\nlines",
        "\x1b]0;x\x07",
        "日本語 e\u0301",
        "\u202eevil",
        "x" * 10**6,
    ]:
        assert add(timeline, comment=comment).comment == comment


def test_code_is_cut_to_a_storable_first_line(timeline, add):
    assert add(timeline, code="\n\n  x = 1\ny = 2").code == "x = 1"
    assert add(timeline, code="").code == ""
    assert add(timeline, code="'\ud800\0'").code == "'\\ud800\\x00'"
    assert len(add(timeline, code="x" * 1000).code) == 200


def test_captures_are_set_by_kind_and_engine(timeline, add):
    id = add(timeline, captures=[Capture("process", "fork")]).id
    timeline.set_capture(id, Capture("process", "image"))
    timeline.set_capture(id, Capture("process", "fork", "evicted"))
    assert [(c.engine, c.state) for c in timeline[id].captures] == [
        ("fork", "evicted"),
        ("image", "pending"),
    ]
    timeline.set_capture(id, Capture("process", "image", "ready", 7))
    assert timeline[id].capture("process").engine == "image"
    assert timeline[id].has_durable_session
    assert timeline[id].capture("filesystem") is None


def test_a_time_without_zone_is_refused(timeline, add):
    with pytest.raises(BadRequest, match="time zone"):
        add(timeline, created_at=datetime(2025, 1, 1))


def test_a_record_survives_json(timeline, add):
    note = Note("child process", "1234 (sleep 60)", "not brought back")
    add(timeline)
    checkpoint = add(
        timeline,
        comment='it\'s "x"\n',
        label="L",
        pinned=True,
        reason="manual",
        coordinate=Coordinate("e", 3, 7, "cell", None),
        captures=[Capture("process", "fork", "failed", 5, None, "why", (note,))],
    )
    record = timeline.record(checkpoint)
    assert record["is_head"] and record["history"] == timeline.history(checkpoint.id)
    assert from_record(json.loads(json.dumps(record))) == checkpoint
    assert "history" not in timeline.record(checkpoint, history=False)


def test_a_broken_record_is_refused(timeline, add):
    record = timeline.record(add(timeline))
    for key in ("id", "coordinate", "captures"):
        with pytest.raises(BadRequest):
            from_record({k: v for k, v in record.items() if k != key})
    with pytest.raises(BadRequest):
        from_record({**record, "created_at": "yesterday"})


def test_equal_summaries_are_shared_between_checkpoints(timeline, add):
    def summaries(value: str) -> dict:
        return {"big": {"value": value}, "same": {"value": "1"}}

    first = add(timeline, variables=summaries("1"))
    second = add(timeline, variables=summaries("1"))
    third = add(timeline, variables=summaries("2"))
    assert second.variables is first.variables
    assert third.variables["same"] is first.variables["same"]
    assert third.variables["big"] == {"value": "2"}
