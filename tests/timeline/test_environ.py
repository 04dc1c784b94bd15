"""Environment variables in the summaries of checkpoints: what is kept, what is shown."""

from __future__ import annotations

import json
import os

import pytest

from kernel_runtime.executor import environ
from kernel_runtime.executor.environ import EnvironmentVariables
from kernel_runtime.timeline.variables import diff, diff_environ, public_variables


def begin(monkeypatch):
    """Made in the test itself: pytest sets a variable for each of its phases."""
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("GOES", "1")
    made = EnvironmentVariables()
    assert made.summary() == {}
    return made


def test_what_differs_from_the_start_is_noted(monkeypatch):
    variables = begin(monkeypatch)
    monkeypatch.setenv("NEW", "x" * 100)
    monkeypatch.delenv("GOES")
    summary = variables.summary()
    assert set(summary) == {"$NEW", "$GOES"}
    assert diff_environ({}, summary) == [
        {"name": "GOES", "before": "1", "after": None},
        {"name": "NEW", "before": None, "after": "x" * 59 + "…"},
    ]
    assert diff_environ(summary, {})[0] == {"name": "GOES", "before": None, "after": "1"}
    assert diff_environ(summary, summary) == []
    monkeypatch.setenv("NEW", "x" * 100 + "y")
    assert [one["name"] for one in diff_environ(summary, variables.summary())] == ["NEW"]
    monkeypatch.delenv("NEW")
    monkeypatch.setenv("GOES", "1")
    assert variables.summary() == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_SECRET_ACCESS_KEY", "hunter2"),
        ("my_token", "hunter2"),
        ("PASSWORD", "hunter2"),
        ("DATABASE_URL", "postgres://me:hunter2@host/db"),
    ],
)
def test_what_looks_secret_is_not_kept(monkeypatch, name, value):
    variables = begin(monkeypatch)
    monkeypatch.setenv(name, value)
    first = variables.summary()
    assert "hunter2" not in json.dumps(first)
    assert diff_environ({}, first) == [{"name": name, "before": None, "after": "(not shown)"}]
    monkeypatch.setenv(name, value.replace("2", "3"))
    second = variables.summary()
    (changed,) = diff_environ(first, second)
    assert changed["before"] == changed["after"] == "(not shown)"
    # another process has another key: whether it changed is not known then
    monkeypatch.setattr(environ, "_KEY", os.urandom(16))
    other = EnvironmentVariables._differences({}, {name.encode(): value.encode()})
    assert diff_environ(first, other) == []
    monkeypatch.delenv(name)
    assert diff_environ(second, variables.summary())[0]["after"] is None


def test_they_are_no_variables(monkeypatch):
    variables = begin(monkeypatch)
    monkeypatch.setenv("NEW", "1")
    summary = {"x": {"type": "int", "value": "1", "fingerprint": {"full": "1"}}}
    both = {**summary, **variables.summary()}
    assert list(public_variables(both)) == ["x"]
    assert diff(summary, both) == {"added": [], "removed": [], "changed": []}


def test_whatever_stands_in_the_place_of_os_environ_is_left_alone(monkeypatch):
    variables = begin(monkeypatch)

    class Own(dict):
        def __iter__(self):
            raise AssertionError("run")

    monkeypatch.setattr(os, "environ", Own(X="1"))
    assert variables.summary() == {}
