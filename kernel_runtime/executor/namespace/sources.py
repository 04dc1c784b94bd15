"""What goes by name: imports of the session, and the text of cells for tracebacks."""

from __future__ import annotations

import linecache
import sys
import types
from collections.abc import Iterable
from typing import Any, Final

from kernel_runtime.executor.namespace import registry

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
    if keeper.class_key(kind) or not callable(value):
        return None
    name = getattr(value, "__qualname__", None)
    module = getattr(value, "__module__", None)
    if registry.name_of(kind) == "numpy.ufunc":
        name = value.__name__
        module = registry.module_of(value, name)
    if type(name) is not str or type(module) is not str or module == "__main__":
        return None
    found_there: Any = sys.modules.get(module)
    for part in name.split("."):
        found_there = getattr(found_there, part, None)
    return [module, name] if found_there is value else None


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
