"""Comparing summaries: what counts as a change and what cannot be seen."""

from __future__ import annotations

import pytest

from kernel_runtime.timeline.variables import diff, differs, public_variables


def summary(type="list", shape="length 3", size=80, value="[1]", **fingerprint):
    return {
        "type": type,
        "size": size,
        "shape": shape,
        "value": value,
        "fingerprint": fingerprint,
    }


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (summary(full="a"), summary(full="a"), False),
        (summary(full="a", id=1), summary(full="a", id=2), False),
        (summary(full="a", id=1), summary(full="b", id=1), True),
        (summary(id=1, sample="a"), summary(id=1, sample="a"), False),
        (summary(id=1, sample="a"), summary(id=2, sample="a"), True),
        (summary(id=1, sample="a"), summary(id=1, sample="b"), True),
        (summary(id=1), summary(id=1, sample="b"), False),
        (summary(id=1, full="a"), summary(id=1), False),
        (summary(id=1, full="a"), summary(id=2), True),
        (summary(id=1), summary(id=1, shape="length 4"), True),
        (summary(full="a"), summary(type="tuple", full="a"), True),
    ],
)
def test_differs(before, after, expected):
    assert differs(before, after) is expected


def test_diff_tells_names_and_public_summaries():
    one, two = summary(full="a"), summary(full="b", value="[2]")
    found = diff({"gone": one, "same": one, "x": one}, {"new": two, "same": one, "x": two})
    assert [item["name"] for item in found["added"]] == ["new"]
    assert [item["name"] for item in found["removed"]] == ["gone"]
    assert found["changed"][0]["name"] == "x"
    assert found["changed"][0]["before"]["value"] == "[1]"
    assert "fingerprint" not in str(found)
    assert not any(diff({"x": one}, {"x": one}).values())
    assert "fingerprint" not in str(public_variables({"x": one}))
