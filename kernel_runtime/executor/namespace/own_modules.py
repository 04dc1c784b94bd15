"""Modules of the user's own: their data is kept, their code is what their files say.

A module is the user's if its file is neither the standard library's nor an installed package's:
no directory above it is a ``site-packages``, and none that was installed lies beside its package.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import os
import sys
import sysconfig
import types
from typing import Any, Final

from kernel_runtime.executor.namespace.reducers.common import is_importable

_INSTALLED: Final = {"site-packages", "dist-packages"}
_OURS: Final = ("__main__", "__mp_main__", "kernel_runtime", "jupyter_timetravel")
_NO_DATA: Final = (types.FunctionType, types.BuiltinFunctionType, type)


def own_modules() -> dict[str, types.ModuleType]:
    """By the name under which they are imported."""
    library = tuple(os.path.join(sysconfig.get_path(n), "") for n in ("stdlib", "platstdlib"))
    is_own: dict[str, bool] = {}
    found = {}
    for name, module in list(sys.modules.items()):
        if type(module) is not types.ModuleType or type(module.__dict__.get("__file__")) is not str:
            continue
        top = name.split(".")[0]
        if top not in is_own:
            is_own[top] = top not in _OURS and _is_own(sys.modules.get(top), library)
        if is_own[top] and str(module.__file__).endswith(".py"):
            found[name] = module
    return found


def _is_own(top: Any, library: tuple[str, ...]) -> bool:
    """Whether a module or package at the top level is the user's."""
    places = [getattr(top, "__file__", None), *(getattr(top, "__path__", None) or ())]
    place = next((each for each in places if type(each) is str), None)
    if place is None:
        return False
    path = os.path.abspath(place)
    if _INSTALLED & set(path.split(os.sep)) or path.startswith(library):
        return False
    root = os.path.dirname(path)
    if os.path.basename(path) == "__init__.py":
        root = os.path.dirname(root)
    try:
        return not any(entry.endswith(".dist-info") for entry in os.listdir(root))
    except OSError:
        return True


def data() -> dict[str, Any]:
    """Their variables, as ``module.name``; what their files define or import is not among them."""
    return {
        f"{module_name}.{name}": value
        for module_name, module in own_modules().items()
        for name, value in list(vars(module).items())
        if not (name.startswith("__") and name.endswith("__")) and not _is_code(value)
    }


def _is_code(value: Any) -> bool:
    # by type(): what stands for something else may do anything when it is asked for its class
    kind = type(value)
    return issubclass(kind, types.ModuleType) or (
        issubclass(kind, _NO_DATA) and is_importable(value)
    )


def set_data(name: str, value: Any) -> None:
    """Raises ImportError where the module is not found, and what its code raises."""
    module_name, _, attribute = name.rpartition(".")
    setattr(importlib.import_module(module_name), attribute, value)


def sources(frozen_at: float) -> dict[str, list[Any]]:
    """The file of each module and the SHA-256 of its text, for the manifest's state.

    Of one that was changed or is gone since the checkpoint, the time of that instead: a restored
    file has its old one again.
    """
    found: dict[str, list[Any]] = {}
    for name, module in own_modules().items():
        path = os.path.abspath(str(module.__file__))
        digest = _digest(path)
        is_as_it_was = digest is not None and (_changed_at(path) or 0.0) <= frozen_at
        found[name] = [path, digest if is_as_it_was else frozen_at]
    return found


def changed_sources(recorded: dict[str, list[Any]]) -> list[list[str]]:
    """Notices on files that differ from those that the state was made with."""
    notices = []
    for name, (path, known) in recorded.items():
        now = _digest(path)
        is_time = isinstance(known, float)
        if now == known or (is_time and (_changed_at(path) or math.inf) <= known):
            continue
        if now is None:
            text = f"{path} is not there any more: {name} cannot be imported from it"
        else:
            text = f"{path} differs from the one that this state was made with: {name} has its code"
        notices.append([name, text])
    return notices


def _changed_at(path: str) -> float | None:
    """Unix time."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


def _digest(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None
