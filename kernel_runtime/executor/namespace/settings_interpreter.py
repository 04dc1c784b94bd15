"""Groups of settings (see ``settings``) of the interpreter and the standard library."""

from __future__ import annotations

import builtins
import importlib
import os
import sys
import types
from typing import Any, Final

from kernel_runtime.executor.namespace.reducers.common import is_importable

OWN_VARIABLES: Final = frozenset(
    {
        *("PYTHONHASHSEED", "JUPYTER_TOKEN"),
        *("DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR", "XDG_SESSION_ID"),
        *("DBUS_SESSION_BUS_ADDRESS", "SSH_AUTH_SOCK", "SSH_AGENT_PID", "SSH_CLIENT", "SSH_TTY"),
        *("SSH_CONNECTION", "GPG_AGENT_INFO", "TERM_SESSION_ID", "WINDOWID", "TMUX", "TMUX_PANE"),
        *("STY", "INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "NOTIFY_SOCKET"),
        *("SHLVL", "_", "PWD", "OLDPWD"),
    }
)
OWN_PREFIXES: Final = ("JUPYTERHUB_", "SLURM_", "KUBERNETES_", "JPY_")
_NO_ADDITIONS: Final = (
    *("builtins", "_sitebuiltins", "_io", "io", "IPython", "ipykernel"),
    *("_pydev_bundle", "_pydevd_bundle", "pydev_ipython", "debugpy"),
)
_PLAIN: Final = (bool, int, float, complex, str, bytes, list, dict, set, tuple)


def _is_own(name: str) -> bool:
    return name in OWN_VARIABLES or name.startswith(OWN_PREFIXES)


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not _is_own(name)}


def set_environment(value: dict[str, str]) -> None:
    """As it was, but for what is the new process's own business (its display, its agents)."""
    for name in list(os.environ):
        if name not in value and not _is_own(name):
            del os.environ[name]
    for name, text in value.items():
        if os.environ.get(name) != text:
            os.environ[name] = text


def directory() -> str:
    return os.getcwd()


def set_directory(value: str) -> list[str] | None:
    try:
        os.chdir(value)
    except OSError as error:
        return [f"the working directory {value} cannot be entered: {error.strerror}"]
    return None


def search_path() -> list[str]:
    return list(sys.path)


def set_search_path(value: list[str]) -> None:
    """As it was; what only the new process has comes last."""
    sys.path[:] = [*value, *(entry for entry in sys.path if entry not in value)]
    importlib.invalidate_caches()


def arguments() -> list[str] | None:
    """None where they are those that the process was started with."""
    rest = sys.argv[1:]
    return None if sys.orig_argv[len(sys.orig_argv) - len(rest) :] == rest else list(sys.argv)


def set_arguments(value: list[str]) -> None:
    sys.argv[:] = value


def limits() -> dict[str, int]:
    found = {"recursion": sys.getrecursionlimit()}
    if hasattr(sys, "get_int_max_str_digits"):
        found["digits"] = sys.get_int_max_str_digits()
    return found


def set_limits(value: dict[str, int]) -> None:
    sys.setrecursionlimit(value["recursion"])
    if "digits" in value and hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(value["digits"])


def added_builtins() -> dict[str, Any] | None:
    """Names that the session put where every module sees them."""
    found = {}
    for name, value in vars(builtins).items():
        module = getattr(value, "__module__", None) or type(value).__module__
        is_known = module.split(".")[0] in _NO_ADDITIONS if isinstance(module, str) else True
        if name.startswith("_") or (is_known and type(value) not in _PLAIN):
            continue
        if value is not None and name not in ("True", "False"):
            found[name] = value
    return found or None


def add_builtins(value: dict[str, Any]) -> None:
    vars(builtins).update(value)


def patches() -> dict[str, dict[str, Any]] | None:
    """Functions and classes of the session that were put into modules."""
    found: dict[str, dict[str, Any]] = {}
    for module_name, module in list(sys.modules.items()):
        if module_name in ("__main__", "builtins") or type(module) is not types.ModuleType:
            continue
        for name, value in list(vars(module).items()):
            kind = type(value)  # not isinstance(): what stands for something may do anything then
            if kind is not types.FunctionType and not issubclass(kind, type):
                continue
            if value.__module__ == "__main__":
                found.setdefault(module_name, {})[name] = value
    return found or None


def set_patches(value: dict[str, dict[str, Any]]) -> list[str]:
    failed = []
    for module_name, names in value.items():
        try:
            vars(importlib.import_module(module_name)).update(names)
        except Exception as error:
            failed.append(f"{module_name} cannot be imported: {error}")
    return failed


def locales() -> str:
    import locale

    return locale.setlocale(locale.LC_ALL)


def set_locales(value: str) -> list[str] | None:
    import locale

    try:
        locale.setlocale(locale.LC_ALL, value)
    except locale.Error:
        return [f"this machine has no locale {value}"]
    return None


def temporary() -> str | None:
    """Where new temporary files go, if that was looked up or set."""
    found: str | None = sys.modules["tempfile"].tempdir
    return found


def set_temporary(value: str) -> list[str] | None:
    import tempfile

    if not os.path.isdir(value):
        return [f"the directory for temporary files, {value}, is not there any more"]
    tempfile.tempdir = value
    return None


def timeout() -> float | None:
    found: float | None = sys.modules["socket"].getdefaulttimeout()
    return found


def set_timeout(value: float) -> None:
    import socket

    socket.setdefaulttimeout(value)


def warning_filters() -> list[Any]:
    """Categories that can be imported by name: what adds a filter for its own adds it again."""
    import warnings

    return [
        (action, message, _named(category), *rest)
        for action, message, category, *rest in warnings.filters
    ]


def _named(category: Any) -> Any:
    is_named = is_importable(category) and category.__module__ != "builtins"
    return f"{category.__module__}:{category.__qualname__}" if is_named else category


def set_warning_filters(value: list[Any]) -> None:
    """Without filters for categories of modules that are not imported (yet)."""
    import warnings

    found: list[Any] = []
    for action, message, category, *rest in value:
        if type(category) is str:
            module, _, path = category.partition(":")
            category = sys.modules.get(module)
            for part in path.split("."):
                category = getattr(category, part, None)
        if category is not None:
            found.append((action, message, category, *rest))
    filters: Any = warnings.filters
    filters[:] = found
    warnings._filters_mutated()  # type: ignore[attr-defined]


def signal_handlers() -> list[str] | None:
    """Handlers are not kept, only named: they run in the middle of anything."""
    import signal

    found = []
    for number in signal.valid_signals():
        if getattr(signal.getsignal(number), "__module__", None) == "__main__":
            found.append(signal.Signals(number).name)
    return found or None


def name_signal_handlers(value: list[str]) -> list[str]:
    return [f"the handler of {name} is not set again: set it in a cell" for name in value]


def decimals() -> Any:
    return sys.modules["decimal"].getcontext().copy()


def set_decimals(value: Any) -> None:
    import decimal

    decimal.setcontext(value)


def randomness() -> Any:
    return sys.modules["random"].getstate()


def set_randomness(value: Any) -> None:
    import random

    random.setstate(value)
