"""Modules of the user's own: their data is kept, their code is what their files say.

A module is the user's if its file is below the working directory, or is neither the standard
library's nor an installed package's.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import sysconfig
import types
from typing import Any, Final

from kernel_runtime.executor.namespace.reducers.common import is_importable

_INSTALLED: Final = {"site-packages", "dist-packages"}
_OURS: Final = ("__main__", "kernel_runtime", "jupyter_timetravel")
_NO_DATA: Final = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)


def own_modules() -> dict[str, types.ModuleType]:
    """By the name under which they are imported."""
    library = tuple(os.path.join(sysconfig.get_path(n), "") for n in ("stdlib", "platstdlib"))
    return {
        name: module
        for name, module in list(sys.modules.items())
        if type(module) is types.ModuleType
        and name.split(".")[0] not in _OURS
        and _is_own(getattr(module, "__file__", None), library)
    }


def _is_own(file: Any, library: tuple[str, ...]) -> bool:
    if not isinstance(file, str) or not file.endswith(".py"):
        return False
    path = os.path.abspath(file)
    if _INSTALLED & set(path.split(os.sep)):
        return False
    return not path.startswith((*library, "/proc/", "/tmp/ipykernel_"))


def data() -> dict[str, Any]:
    """Their variables, as ``module.name``; what their files define or import is not among them."""
    return {
        f"{module_name}.{name}": value
        for module_name, module in own_modules().items()
        for name, value in list(vars(module).items())
        if not (name.startswith("__") and name.endswith("__")) and not _is_code(value)
    }


def _is_code(value: Any) -> bool:
    return isinstance(value, types.ModuleType) or (
        isinstance(value, _NO_DATA) and is_importable(value)
    )


def set_data(name: str, value: Any) -> None:
    """Raises ImportError where the module is not found, and what its code raises."""
    module_name, _, attribute = name.rpartition(".")
    setattr(importlib.import_module(module_name), attribute, value)


def sources() -> dict[str, list[str]]:
    """The file of each module and the SHA-256 of its text, for the manifest's state."""
    found = {}
    for name, module in own_modules().items():
        digest = _digest(str(module.__file__))
        if digest is not None:
            found[name] = [os.path.abspath(str(module.__file__)), digest]
    return found


def changed_sources(recorded: dict[str, list[str]]) -> list[list[str]]:
    """Notices on files that differ from those that the state was made with."""
    notices = []
    for name, (path, digest) in recorded.items():
        now = _digest(path)
        if now == digest:
            continue
        if now is None:
            text = f"{path} is not there any more: {name} cannot be imported from it"
        else:
            text = f"{path} differs from the one that this state was made with: {name} has its code"
        notices.append([name, text])
    return notices


def _digest(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None
