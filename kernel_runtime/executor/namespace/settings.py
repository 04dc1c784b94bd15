"""State that lives in the interpreter and in libraries, not in variables: a table of groups.

``groups`` reads what the session set, ``apply`` puts one group back. A group is read only where its
library is loaded, and a library is imported only for a group that was read. What is in no group is
not kept (docs/namespace.md has the list).

Some of it belongs to the context that cells run in (decimal, numpy's print options and error
modes): both are called in the main thread, and use ``session.context`` where there is one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from kernel_runtime.executor.namespace import (
    settings_interpreter,
    settings_libraries,
    settings_logging,
    settings_pyplot,
)
from kernel_runtime.executor.namespace.session import SessionState

Notices = list[list[str]]
T = TypeVar("T")


class Group(NamedTuple):
    """``capture`` gives None where there is nothing to keep. ``apply`` gives texts for the user."""

    name: str
    module: str  # the group exists where this one is loaded
    capture: Callable[[], Any]
    apply: Callable[[Any], list[str] | None]
    is_early: bool = False  # before variables are loaded: they may need it


_interpreter = settings_interpreter
_libraries = settings_libraries

GROUPS: Final = (
    Group("environment", "os", _interpreter.environment, _interpreter.set_environment, True),
    Group("cwd", "os", _interpreter.directory, _interpreter.set_directory, True),
    Group("sys.path", "sys", _interpreter.search_path, _interpreter.set_search_path, True),
    Group("sys.argv", "sys", _interpreter.arguments, _interpreter.set_arguments, True),
    Group("limits", "sys", _interpreter.limits, _interpreter.set_limits),
    Group("builtins", "builtins", _interpreter.added_builtins, _interpreter.add_builtins),
    Group("patches", "sys", _interpreter.patches, _interpreter.set_patches),
    Group("locale", "locale", _interpreter.locales, _interpreter.set_locales),
    Group("tempfile", "tempfile", _interpreter.temporary, _interpreter.set_temporary),
    Group("socket", "socket", _interpreter.timeout, _interpreter.set_timeout),
    Group("warnings", "warnings", _interpreter.warning_filters, _interpreter.set_warning_filters),
    Group("signals", "signal", _interpreter.signal_handlers, _interpreter.name_signal_handlers),
    Group("decimal", "decimal", _interpreter.decimals, _interpreter.set_decimals),
    Group("pandas", "pandas", _libraries.pandas_options, _libraries.set_pandas_options),
    Group("polars", "polars", _libraries.polars_options, _libraries.set_polars_options),
    Group("sklearn", "sklearn", _libraries.sklearn_options, _libraries.set_sklearn_options),
    Group("numpy", "numpy", _libraries.numpy_options, _libraries.set_numpy_options),
    Group("duckdb", "duckdb", _libraries.duckdb_connection, _libraries.set_duckdb_connection),
    Group("torch", "torch", _libraries.torch_options, _libraries.set_torch_options),
    Group("matplotlib", "matplotlib", _libraries.plot_options, _libraries.set_plot_options),
    Group("logging", "logging", settings_logging.levels, settings_logging.set_levels),
    # last: what comes before may draw random numbers or figures
    Group("pyplot", "matplotlib.pyplot", settings_pyplot.figures, settings_pyplot.show_figures),
    Group("random", "random", _interpreter.randomness, _interpreter.set_randomness),
    Group(
        "numpy.random", "numpy.random", _libraries.numpy_randomness, _libraries.set_numpy_randomness
    ),
    Group("torch.random", "torch", _libraries.torch_randomness, _libraries.set_torch_randomness),
)
LOGGER: Final = "logger:"
_BY_NAME: Final = {group.name: group for group in GROUPS}
_PLACES: Final = {group.name: place for place, group in enumerate(GROUPS)}


def groups(session: SessionState) -> tuple[dict[str, Any], Notices]:
    """What the session set, by group, to be pickled; and groups that could not be read, with why.

    Each logger that was configured is a group of its own (``logger:NAME``).
    """
    found: dict[str, Any] = {}
    notices: Notices = []
    for group in GROUPS:
        if group.module not in sys.modules:
            continue
        try:
            value = session.in_cells(group.capture)
        except Exception as error:
            notices.append([group.name, f"not kept: {type(error).__name__}: {error}"])
            continue
        if value is not None:
            found[group.name] = value
    if session.directory is not None:
        found["cwd"] = session.directory
    for name, logger in settings_logging.configured().items():
        found[LOGGER + name] = logger
    return found, notices


def order(name: str) -> int:
    """The place of a group among those to be applied."""
    return _PLACES["logging"] if name.startswith(LOGGER) else _PLACES.get(name, len(GROUPS))


def is_early(name: str) -> bool:
    """Whether it is applied before variables are loaded, which may need it."""
    return name in _BY_NAME and _BY_NAME[name].is_early


def apply(name: str, value: Any, session: SessionState) -> Notices:
    """Put a group back; notices tell what of it could not be. Raises nothing."""
    if name.startswith(LOGGER):
        return []  # loading it has configured it
    group = _BY_NAME.get(name)
    if group is None:
        return [[name, "not brought back: this version does not know it"]]
    try:
        texts = session.in_cells(lambda: group.apply(value)) or []
    except Exception as error:
        texts = [f"not brought back: {type(error).__name__}: {error}"]
    return [[name, text] for text in texts]
