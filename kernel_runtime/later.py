"""The standard library's ``dataclass``, whose methods are made with the first object.

Making them compiles up to seven functions, half a millisecond for each class. The two Pythons of a
kernel import a hundred such classes before the first cell, and make objects of a few.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

_incomplete: deque[Callable[[], None]] = deque()


def complete() -> Iterator[None]:
    """Complete the classes that there are by now, one with each step."""
    while _incomplete:
        _incomplete.popleft()()
        yield


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    _completing = threading.RLock()

    def dataclass(cls: Any = None, /, *, frozen: bool = False, eq: bool = True) -> Any:
        """As dataclasses.dataclass."""
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, eq=eq)
        is_complete = False

        def complete() -> None:
            nonlocal is_complete
            with _completing:
                if is_complete:
                    return
                dataclasses.dataclass(init=False, frozen=frozen, eq=eq)(cls)
                # last of all, so that no thread meets a class half made
                heir = type(cls)(cls.__name__, (cls,), {"__doc__": cls.__doc__})
                made = dataclasses.dataclass(frozen=frozen, eq=False, repr=False)(heir).__init__
                made.__qualname__ = f"{cls.__qualname__}.__init__"
                cls.__init__ = made
                is_complete = True

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            complete()
            cls.__init__(self, *args, **kwargs)

        def set_state(self: Any, state: Any) -> None:
            complete()  # what is unpickled was not made by __init__
            vars(self).update(state)

        _incomplete.append(complete)
        cls.__init__, cls.__setstate__ = init, set_state
        cls.__dataclass_fields__ = _Fields(complete)
        return cls

    class _Fields:
        """Stands for the fields of a class until somebody asks: dataclasses.fields, a subclass."""

        def __init__(self, complete: Any) -> None:
            self._complete = complete

        def __get__(self, _: Any, cls: Any) -> Any:
            self._complete()
            return cls.__dataclass_fields__
