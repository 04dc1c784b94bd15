"""``AsyncClient`` is ``Client``, awaited: the same methods, parameters and types."""

from __future__ import annotations

import inspect

import pytest

from jupyter_timetravel import AsyncClient, Client

OWN = {
    "aclose": "only one of them can wait until it is closed",
    "at": "it makes the one or the other",
    "events": "an iterator of its own each",
    "from_connection_file": "only a blocking one must be told that its kernel is gone",
}
"""Methods that are not the same, and why."""


def public(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(method)
        for name, method in inspect.getmembers(kind, callable)
        if not name.startswith("_") and name not in OWN
    }


def test_they_have_the_same_methods() -> None:
    assert public(AsyncClient).keys() == public(Client).keys()
    assert OWN.keys() <= {*dir(Client), *dir(AsyncClient)}


@pytest.mark.parametrize("name", sorted(public(Client)))
def test_a_method_is_the_same(name: str) -> None:
    blocking, awaited = getattr(Client, name), getattr(AsyncClient, name)
    assert public(AsyncClient)[name] == public(Client)[name]  # types too
    assert inspect.iscoroutinefunction(awaited) == (name != "close")
    assert inspect.getdoc(awaited) in (inspect.getdoc(blocking), f"See ``Client.{name}``.")
