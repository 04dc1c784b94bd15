"""How objects are kept whose own way of being pickled is wrong, by type.

A reducer is registered for types by their qualified name, so that nothing is imported for it, and
is looked up over the method resolution order of an object's type: one for ``logging.Logger`` is
found for its subclasses too. A class that defines ``__reduce__`` or ``__reduce_ex__`` below the
registered one keeps its own way. What is made by the modules of the package ``reducers`` (which
imports them all in its ``__init__``) is registered when they are imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import pickle
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from kernel_runtime.executor.namespace.session import SessionState


class NotKept(Exception):
    """An object cannot be kept; ``reason`` in the user's words: "a generator cannot be kept"."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Context(Protocol):
    """What a reducer may use while one variable is pickled."""

    session: SessionState

    def notice(self, text: str) -> None:
        """Tell of the variable that is pickled that it comes back, but not quite as it was."""

    def block(self, memory: memoryview) -> Any:
        """Memory (contiguous, format ``B``) to be stored apart from the stream, by content.

        The result stands for it among the arguments of a rebuilder, which gets a
        ``loading.StoredBlock`` in its place: ``nbytes``, and ``read_into(memoryview)``.
        """


Reducer = Callable[[Any, Any], Any]
"""``(obj, context)`` to what ``__reduce_ex__`` gives (a tuple of up to six), or NotImplemented for
pickle's own way. Raises NotKept. The first item is a function at the top level of a module."""


class Registered(NamedTuple):
    """A reducer, and whether its result for one object is asked for once per dump only."""

    reduce: Reducer
    is_asked_once: bool


_BY_NAME: Final[dict[str, Registered]] = {}
_REFERENCES: Final[dict[str, None]] = {}


def reducer(*kinds: str | type, once: bool = True) -> Callable[[Reducer], Reducer]:
    """Register the decorated function for types, by ``module.qualified_name`` or themselves.

    With ``once``, what it gave for an object is used again if the object is pickled again in the
    same dump: it may have side effects.
    """

    def register(function: Reducer) -> Reducer:
        for kind in kinds:
            name = kind if isinstance(kind, str) else name_of(kind)
            _BY_NAME[name] = Registered(function, once)
        return function

    return register


def by_reference(*places: str) -> None:
    """Objects that every process has one of, as ``module:attribute``: kept by that name."""
    _REFERENCES.update(dict.fromkeys(places))


def references() -> list[str]:
    """Every place that was given to ``by_reference``."""
    return list(_REFERENCES)


def name_of(kind: type) -> str:
    """``module.qualified_name`` of a type, whatever its class says about attributes."""
    module = type.__dict__["__module__"].__get__(kind)
    qualname = type.__dict__["__qualname__"].__get__(kind)
    return f"{module}.{qualname}"


def module_of(obj: Any, name: str) -> str:
    """The module that has an object under a name; ``__main__`` if none has."""
    try:
        module: str = pickle.whichmodule(obj, name)  # type: ignore[attr-defined]
    except pickle.PicklingError:  # since Python 3.14: __main__ does not have it either
        return "__main__"
    return module


def find(kind: type) -> Registered | None:
    """The reducer for objects of this exact type, or None."""
    for base in type.__dict__["__mro__"].__get__(kind):
        found = _BY_NAME.get(name_of(base))
        if found is not None:
            return found
        members = type.__dict__["__dict__"].__get__(base)
        if base is not object and ("__reduce__" in members or "__reduce_ex__" in members):
            return None
    return None


def load_reducers() -> None:
    """Import every module that registers reducers."""
    for name in ("arrays", "code", "exceptions", "frames", "typevars", "reducers"):
        importlib.import_module(f"kernel_runtime.executor.namespace.{name}")
