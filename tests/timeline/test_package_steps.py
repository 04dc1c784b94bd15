"""What a restore says of packages, composed from what each checkpoint changed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kernel_runtime.supervisor.package_steps import compose


def change(name: str, before: str | None, after: str | None, where: str = "/site") -> Any:
    return {"manager": "pip", "name": name, "before": before, "after": after, "where": where}


def test_what_comes_back_to_where_it_was_is_no_change() -> None:
    assert compose([[change("numpy", "2", "1")], [change("numpy", "1", "2")]]) == []


def test_names_are_one_however_they_are_written() -> None:
    steps = [[change("Scikit_Learn", None, "1")], [change("scikit-learn", "1", "2")]]
    assert compose(steps) == [change("scikit-learn", None, "2")]


def test_places_are_apart() -> None:
    steps = [[change("a", None, "1", "/x"), change("a", None, "2", "/y")]]
    assert compose(steps) == steps[0]


@given(st.lists(st.sampled_from(["1", "2", None]), min_size=1, max_size=8))
def test_any_walk_is_its_two_ends(versions: list[str | None]) -> None:
    walk = [[change("a", was, now)] for was, now in pairwise(versions)]
    found = compose(walk)
    if versions[0] == versions[-1]:
        assert found == []
    else:
        assert found == [change("a", versions[0], versions[-1])]
