"""Undos that cells register for what no rollback takes back: kept here, called by the supervisor.

They are part of the process: a checkpoint's process has those that had been registered by then.
"""

from __future__ import annotations

import reprlib
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

from kernel_runtime import errors
from kernel_runtime.executor.effects import Effects

TEXT_LENGTH: Final = 200


class Compensations:
    """The functions of one process, by id."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {}

    def add(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Register a call for the cell that runs. Raises BadRequest where none does."""
        if not callable(fn):
            raise errors.BadRequest(
                f"compensate needs a function, not {reprlib.repr(fn)}. Nothing was registered."
            )
        if not self._effects.cell:
            raise errors.BadRequest(
                "compensate belongs to the cell that it is called in, and none runs. Nothing was "
                "registered; call it in the cell whose effect is to be undone."
            )
        id = uuid.uuid4().hex
        self._calls[id] = (fn, args, kwargs)
        self._effects.compensations.append((id, _text(fn, args, kwargs)))

    def known(self, ids: Sequence[str]) -> list[str]:
        """Which of these can be called here."""
        return [id for id in ids if id in self._calls]

    def run(self, id: str) -> None:
        """Call one and forget it. Raises what it raises, and then it can be called again."""
        fn, args, kwargs = self._calls[id]
        fn(*args, **kwargs)
        del self._calls[id]


def _text(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    try:
        given = [reprlib.repr(arg) for arg in args]
        given += [f"{key}={reprlib.repr(value)}" for key, value in kwargs.items()]
    except Exception:  # a repr of the user's
        given = ["…"]
    text = f"{name}({', '.join(given)})"
    return text if len(text) <= TEXT_LENGTH else text[: TEXT_LENGTH - 1] + "…"
