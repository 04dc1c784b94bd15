"""Each kind of state over each engine: kept, or lost and named, as the table in the docs says."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.states import table
from tests.states.suite import LEFT_OUT, SILENT, WAYS, Course, programs


def test_no_two_programs_share_a_name() -> None:
    for one, other in itertools.combinations(programs(), 2):
        shared = one.names & other.names
        assert not shared, f"{one.name} and {other.name}: {shared}"


@pytest.mark.parametrize(
    "engine",
    [
        "fork",
        "image",
        pytest.param("criu", marks=pytest.mark.root),
        pytest.param("dmtcp", marks=[pytest.mark.exhaustive, pytest.mark.timeout(1200)]),
    ],
)
def test_what_becomes_of_each_state(
    engine: str,
    start_notebook: Callable[..., Any],
    document: dict[str, Any],
    ability: Callable[[str, bool], None],
) -> None:
    way = WAYS[engine]
    if engine == "dmtcp" and way.missing():  # which few machines have
        pytest.skip(f"missing ability: DMTCP ({way.missing()})")
    ability(way.missing(), not way.missing())
    outcomes = Course(way, start_notebook, document).run_all()
    silent = {name: found.text for name, found in outcomes.items() if found.kind == SILENT}
    assert not silent
    in_docs = table.column(engine)
    found = {name: o.shown for name, o in outcomes.items() if o.kind != LEFT_OUT}
    assert found == {name: in_docs[name] for name in found}, table.HOW
    assert set(in_docs) == set(outcomes), table.HOW
