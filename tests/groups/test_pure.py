"""What a group record is, who wrote what, and who conflicts: without I/O; then their rows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_runtime.errors import BadRequest
from kernel_runtime.store.database import open_store
from kernel_runtime.store.database_file import FILE_NAME
from kernel_runtime.store.errors import DatabaseDamaged, StoreError
from kernel_runtime.store.keys import Keys
from kernel_runtime.timeline.groups import (
    Alone,
    Doing,
    Group,
    GroupRecord,
    GroupRefused,
    Held,
    Member,
    Step,
    Unfinished,
    UnknownGroup,
    check_name,
    resolve,
    shares,
    where,
    writers,
)

AT = datetime(2025, 1, 31, tzinfo=timezone.utc)
A = Member("A", "a" * 32, "/w/A.ipynb", "/r/a.json")


def record(number: int, kind: Any = "checkpoint", comment: str = "", head: str = "") -> GroupRecord:
    held = {"A": Held(A.timeline, head or f"c{number}", number)}
    return GroupRecord(f"{number:032x}", number, AT + timedelta(number), kind, comment, held, {})


RECORDS = [
    record(1, comment="start"),
    record(2, "safety", "before the restore of G1"),
    record(3, comment="start"),
]


@pytest.mark.parametrize(
    ("spec", "number"),
    [
        ("G1", 1),
        ("g2", 2),
        ("#3", 3),
        ("1", 1),
        ("-1", 3),
        ("-2", 1),
        ("start", 3),
        ("before the restore of G1", 2),
        (f"{3:032x}", 3),
    ],
)
def test_a_record_is_found_by_its_names(spec: str, number: int) -> None:
    assert resolve(RECORDS, spec).number == number


@pytest.mark.parametrize("spec", ["G4", "-3", "-0", "", " ", "nothing", "000000"])
def test_what_names_no_record_or_several(spec: str) -> None:
    with pytest.raises(UnknownGroup, match="G1, G2, G3"):
        resolve(RECORDS, spec)


@pytest.mark.parametrize("name", ["", " ", "-a", "a/b", "a=b", "_x", "x" * 101, "a\nb"])
def test_names_that_cannot_be_typed(name: str) -> None:
    with pytest.raises(BadRequest):
        check_name(name, "member")


def test_where_a_member_is() -> None:
    records = [record(1, head="x"), record(2, "safety", head="x"), record(3, head="y")]
    assert where(records, A, "x", 7) == "G1"
    assert where(records, A, "y", 7) == "G3"
    assert where(records, A, "z", 7) == "#7"
    assert where(records, replace(A, timeline="b" * 32), "x", 7) == "#7"


def step(after: float, before: float, *paths: str) -> Step:
    return Step(after, before, frozenset((0, path.encode()) for path in paths))


def test_the_one_at_work_has_written_it() -> None:
    found = writers(
        [step(0, 2, "a", "both"), step(1, 4, "b", "both")],
        [Doing("A", 0.5, 1), Doing("B", 2.5, 3)],
    )
    assert found == {
        (0, b"a"): {"A"},
        (0, b"b"): {"B"},
        (0, b"both"): {"A", "B"},
    }


def test_cells_that_overlap_count_as_both() -> None:
    found = writers([step(0, 2, "a")], [Doing("A", 0.5, 1), Doing("B", 1.9, 5)])
    assert found == {(0, b"a"): {"A", "B"}}


def test_what_nobody_can_have_written_is_nobodys_for_good() -> None:
    steps = [step(0, 1, "x"), step(1, 3, "x")]
    assert writers(steps, [Doing("B", 2, 2.5)]) == {(0, b"x"): frozenset()}
    assert writers(reversed(steps), [Doing("B", 2, 2.5)]) == {(0, b"x"): frozenset()}


def paths(*names: str) -> frozenset[tuple[int, bytes]]:
    return frozenset((0, name.encode()) for name in names)


def test_what_goes_back_with_one_member() -> None:
    written = {
        (0, b"b"): frozenset("B"),
        (0, b"a"): frozenset("A"),
        (0, b"both"): frozenset("AB"),
        (0, b"nobody"): frozenset(),
        (0, b"back again"): frozenset("B"),
    }
    found = shares("B", paths("b", "a", "both", "nobody", "unseen"), written)
    assert found.own == paths("b")
    assert found.conflicts == {
        (0, b"both"): {"A", "B"},
        (0, b"nobody"): frozenset(),
        (0, b"unseen"): frozenset(),
    }


def test_a_directory_in_which_something_stays_stays() -> None:
    written = {
        (0, b"d"): frozenset("B"),
        (0, b"d/e"): frozenset("B"),
        (0, b"d/e/mine"): frozenset("B"),
        (0, b"d/e/theirs"): frozenset("A"),
        (0, b"f"): frozenset("B"),
        (0, b"f/x"): frozenset("B"),
    }
    found = shares("B", written, written)
    assert found.own == paths("d/e/mine", "f", "f/x")
    assert found.conflicts == {(0, b"d"): {"A", "B"}, (0, b"d/e"): {"A", "B"}}


NAMES = st.sampled_from(["a", "d", "d/a", "d/e", "d/e/a", "x"])
TIMES = st.floats(0, 10)


@given(
    st.lists(st.tuples(TIMES, TIMES, st.frozensets(NAMES)), max_size=6),
    st.lists(st.tuples(st.sampled_from("ABC"), TIMES, TIMES), max_size=8),
)
def test_nothing_that_another_may_have_written_goes_back(
    steps: list[tuple[float, float, frozenset[str]]], doings: list[tuple[str, float, float]]
) -> None:
    known = [step(min(a, b), max(a, b), *names) for a, b, names in steps]
    at_work = [Doing(who, min(a, b), max(a, b)) for who, a, b in doings]
    written = writers(known, at_work)
    found = shares("B", written, written)
    assert not found.own & set(found.conflicts)
    others = [one for one in at_work if one.member != "B"]
    for one in known:
        touched = any(w.start <= one.before and w.end > one.after for w in others)
        assert not (touched and found.own & one.paths)
        if touched:
            # nor a directory that holds it
            for root, path in one.paths:
                above = path
                while b"/" in above:
                    above = above.rpartition(b"/")[0]
                    assert (root, above) not in found.own


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with closing(open_store(tmp_path / "store", Keys(tmp_path / "keys"))) as found:
        yield found


def test_a_group_comes_back_as_it_was_written(store: Any, tmp_path: Path) -> None:
    made = store.groups.create("g", [A])
    assert store.groups.get("g") == made
    changed = replace(
        made,
        alone=(Alone("A", "r", "G1", "s", 12.5),),
        unfinished=Unfinished("r", "s"),
    )
    one = replace(record(1, comment="né"), missing={"B": "busy: a cell runs"})
    store.groups.put(changed, one)
    with closing(open_store(tmp_path / "store", Keys(tmp_path / "keys"))) as again:
        assert again.groups.all() == [changed]
        assert again.groups.records(changed) == [one]
        assert not one.is_complete
        assert again.problems() == []


def test_a_row_that_is_damaged_is_told(store: Any, tmp_path: Path) -> None:
    made = store.groups.create("g", [A])
    store.groups.put(made, record(1))
    with closing(sqlite3.connect(tmp_path / "store" / FILE_NAME)) as connection, connection:
        connection.execute("UPDATE group_records SET details = '{'")
    with pytest.raises(DatabaseDamaged):
        store.groups.records(made)
    with closing(sqlite3.connect(tmp_path / "store" / FILE_NAME)) as connection, connection:
        connection.execute("UPDATE groups SET details = '{}'")
    for read in (store.groups.all, lambda: store.groups.get("g")):
        with pytest.raises(DatabaseDamaged):
            read()


def test_groups_that_are_there_or_not(store: Any) -> None:
    made: Group = store.groups.create("g", [])
    with pytest.raises(GroupRefused, match="already"):
        store.groups.create("g", [A])
    with pytest.raises(UnknownGroup, match="there are: g"):
        store.groups.get("h")
    store.groups.put(made, record(1))
    store.groups.delete(made)
    assert store.groups.all() == []
    assert store.groups.records(made) == []
    with pytest.raises(UnknownGroup, match="deleted meanwhile"):
        store.groups.put(made, record(2))


def test_a_record_and_its_note_are_written_together_or_not_at_all(store: Any) -> None:
    made: Group = store.groups.create("g", [A])
    store.groups.put(made, record(1))
    with pytest.raises(StoreError):  # its number is taken
        store.groups.put(replace(made, unfinished=Unfinished("r", "s")), record(1))
    assert store.groups.get("g").unfinished is None
    assert len(store.groups.records(made)) == 1
