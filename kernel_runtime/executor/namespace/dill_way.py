"""What dill would write for an object of a type that it knows, without its pickler."""

from __future__ import annotations

import importlib
import io
import sys
from typing import Any

from kernel_runtime.executor.namespace.registry import NotKept


class _Recorder:
    """Stands for the pickler in a save function of dill's, and notes what it would write."""

    _byref = _recurse = _session = _strictio = _postproc = _main = _fmode = None

    def __init__(self) -> None:
        self.result: tuple[Any, ...] | None = None
        self.memo: dict[int, Any] = {}

    def save_reduce(self, func: Any, args: Any, *state: Any, obj: Any = None, **more: Any) -> None:
        if self.result is not None:
            raise ValueError("more than one object")
        names = ("state", "listitems", "dictitems", "state_setter")
        self.result = (func, args, *state, *(more.get(n) for n in names[len(state) :]))


def reduce(obj: Any) -> Any:
    """What dill does for a type that neither pickle nor we know. Raises NotKept.

    Never for files and the like: dill opens them again, and may empty them by that.
    """
    kind = type(obj)
    refusal = NotKept(f"a {kind.__name__.replace('_', ' ')} cannot be kept")
    if isinstance(obj, io.IOBase) or kind.__module__ in ("_io", "io", "_socket", "socket"):
        raise refusal
    try:
        save = importlib.import_module("dill").Pickler.dispatch[kind]
    except ImportError:
        python = sys.executable or "this Python"
        lacks = f"{refusal.reason} without the package dill, which {python} does not have"
        raise NotKept(lacks) from None
    except (KeyError, TypeError):
        raise refusal from None
    recorder = _Recorder()
    try:
        save(recorder, obj)
    except Exception:
        raise refusal from None
    if recorder.result is None:
        raise refusal
    return recorder.result
