"""What goes by name: imports of the session, and the text of cells for tracebacks."""

from __future__ import annotations

import linecache
import pickle
import sys
import types
from collections.abc import Iterable
from typing import Any, Final

NAME: Final = "settings:sources"


def importable(value: Any, keeper: Any) -> list[str] | None:
    """[module] or [module, qualified name] that a fresh process imports this from, or None."""
    kind = type(value)
    if kind is types.ModuleType:
        name = value.__dict__.get("__name__")
        spec = value.__dict__.get("__spec__")
        if sys.modules.get(name) is value and (spec is not None or name == "__main__"):
            return [name]
        return None
    if issubclass(kind, (type, types.FunctionType)):
        found = keeper.found(value)
        return None if found is None else list(found)
    if keeper.class_key(kind) or not hasattr(kind, "__call__"):  # noqa: B004 - of the type
        return None
    if kind is not types.BuiltinFunctionType and kind.__module__.split(".")[0] != "numpy":
        return None
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if type(name) is not str:
        return None
    module = getattr(value, "__module__", None) or pickle.whichmodule(value, name)  # type: ignore[attr-defined]
    found_there: Any = sys.modules.get(module)
    for part in name.split("."):
        found_there = getattr(found_there, part, None)
    return [module, name] if found_there is value and module != "__main__" else None


def wanted(filenames: Iterable[str], shell: Any) -> dict[str, Any]:
    """The text of those files that only this process has, and the counts of their cells."""
    texts = {}
    counts = getattr(getattr(shell, "compile", None), "_filename_map", None) or {}
    for filename in sorted(filenames):
        entry = linecache.cache.get(filename)
        if entry is not None and len(entry) == 4 and entry[1] is None:
            texts[filename] = "".join(entry[2])
    return {"texts": texts, "counts": {name: counts[name] for name in texts if name in counts}}


def put_back(found: dict[str, Any], shell: Any) -> None:
    """Make the texts known where tracebacks and ``inspect`` look."""
    for filename, text in found["texts"].items():
        lines = text.splitlines(keepends=True)
        linecache.cache[filename] = (len(text), None, lines, filename)
    counts = getattr(getattr(shell, "compile", None), "_filename_map", None)
    if type(counts) is dict:
        counts.update(found["counts"])
