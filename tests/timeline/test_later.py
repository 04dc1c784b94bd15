"""Classes that are completed with their first object are those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
import threading
from dataclasses import FrozenInstanceError, field

import pytest

from kernel_runtime import later
from kernel_runtime.later import dataclass


@dataclass(frozen=True)
class Base:
    """Has a default that is made anew."""

    number: int
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Derived(Base):
    """Adds a field."""

    text: str = "t"


@dataclasses.dataclass(frozen=True)
class Ordinary(Base):
    """One of the library's, of one of ours."""

    more: int = 0


@dataclass
class Checked:
    """Looks at itself when it is made."""

    value: int = 1

    def __post_init__(self) -> None:
        self.double = 2 * self.value


@dataclass(eq=False)
class Distinct:
    """Each is equal to itself only."""

    value: int = 1


class Plain(Checked):
    """A subclass without fields of its own."""


def test_objects_are_as_ever():
    one = Derived(1, ["a"])
    assert one == Derived(1, ["a"]) != Derived(2)
    assert repr(one) == "Derived(number=1, names=['a'], text='t')"
    assert Base(1).names is not Base(1).names
    assert dataclasses.replace(one, text="u").text == "u"
    assert dataclasses.asdict(one) == {"number": 1, "names": ["a"], "text": "t"}
    assert copy.copy(one) == one
    assert hash(Ordinary(1, ())) == hash(Ordinary(1, ()))
    assert Plain(value=3).double == 6
    assert Plain(3) == Plain(3)
    assert Distinct() != Distinct()
    with pytest.raises(FrozenInstanceError):
        one.number = 2
    with pytest.raises(TypeError, match=r"Checked.__init__\(\) got an unexpected keyword"):
        Checked(other=1)


def test_fields_are_known_before_there_is_an_object():
    @dataclass
    class Unused:
        """Nothing has been made of it."""

        first: int
        second: int = 2

    assert dataclasses.is_dataclass(Unused)
    assert [f.name for f in dataclasses.fields(Unused)] == ["first", "second"]


def test_what_was_unpickled_first_is_complete():
    code = (
        "import pickle, sys; from kernel_runtime.timeline.model import Note; "
        "one = pickle.loads(bytes.fromhex(sys.argv[1])); assert one == Note('a', 'b', 'c'); "
        "print(one)"
    )
    from kernel_runtime.timeline.model import Note

    one = Note("a", "b", "c")
    pickled = pickle.dumps(one).hex()
    told = subprocess.run([sys.executable, "-c", code, pickled], capture_output=True, text=True)
    assert told.stdout.strip() == repr(one), told.stderr


def test_threads_that_make_the_first_objects_at_once():
    for _ in range(50):

        @dataclass(frozen=True)
        class Shared:
            """Made by several threads."""

            value: int
            other: list[int] = field(default_factory=list)

        made = []
        start = threading.Barrier(4)

        def make(kind=Shared, start=start, made=made) -> None:
            start.wait()
            made.append(kind(1) == kind(1))

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert made == [True] * 4


def test_all_can_be_completed_ahead():
    @dataclass
    class Waiting:
        """Nobody has made one."""

        value: int = 1

    assert "__eq__" not in vars(Waiting)
    for _ in later.complete():
        pass
    assert "__eq__" in vars(Waiting)
    assert Waiting(2) == Waiting(2)
