"""Which variables hold an object: found through attributes and containers, not through hubs."""

from __future__ import annotations

import asyncio
import collections
import subprocess
import sys
import threading
import types

import pytest

from kernel_runtime.executor.holders import LONGEST, OBJECTS_EACH, holders, told


class Owner:
    """As a library's object that keeps a process."""

    def __init__(self, inner: object) -> None:
        self.inner = inner


class LyingList(list):
    def __len__(self) -> int:
        raise RuntimeError("must not be asked")


@pytest.fixture
def lost() -> subprocess.Popen[bytes]:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child


def names(lost: object, **variables: object) -> list[str]:
    return holders(variables, {}, [lost])[0]


def test_the_object_itself_and_what_refers_to_it(lost):
    deep = Owner([{"worker": (Owner(collections.deque([lost])),)}])
    assert names(lost, p=lost, ps=[lost], deep=deep, other=[1]) == ["p", "ps", "deep"]
    assert names(lost, kept=LyingList([lost])) == ["kept"]
    assert holders({"a": [lost]}, {}, []) == []
    assert holders({"a": [lost]}, {}, [lost, deep]) == [["a"], []]


def test_what_is_not_the_users_is_not_named(lost):
    hidden = {"p": lost}
    assert holders({"p": lost, "_": lost, "Out": {1: lost}}, hidden, [lost]) == [[]]


def test_what_leads_to_everything_holds_nothing(lost):
    module = types.ModuleType("m")
    module.child = lost
    loop = asyncio.new_event_loop()
    loop.child = lost
    thread = threading.Thread()
    thread.child = lost
    variables = {
        "module": module,
        "loop": loop,
        "thread": thread,
        "function": lambda: lost,
        "kind": type("K", (), {"child": lost}),
        "p": lost,
    }
    variables["everything"] = variables
    try:
        assert holders(variables, {}, [lost]) == [["p"]]
    finally:
        loop.close()


def test_data_is_not_gone_through(lost):
    assert names(lost, data=[lost] * (LONGEST + 1)) == []
    many = [[Owner(n)] for n in range(OBJECTS_EACH)]
    assert names(lost, many=[many, Owner(Owner(Owner(Owner(lost))))], p=lost) == ["p"]


@pytest.mark.parametrize(
    ("held_by", "text"),
    [
        ([], ""),
        (["pool"], " (of pool)"),
        (["a", "b", "c"], " (of a, b, c)"),
        (["a", "b", "c", "d", "e"], " (of a, b, c and 2 more)"),
    ],
)
def test_words(held_by, text):
    assert told(held_by) == text
