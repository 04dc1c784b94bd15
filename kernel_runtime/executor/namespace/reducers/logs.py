"""Loggers: by name, with their configuration and the same handlers.

Putting a configuration back replaces what is there, so restoring again adds no handler twice. A
file that a handler writes to is opened again, for appending, when it has something to say.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from kernel_runtime.executor.namespace.reducers.common import make
from kernel_runtime.executor.namespace.registry import Context, NotKept, reducer

# attributes of a handler that belong to the process
_LOCKS: Final = ("lock",)
_CONNECTIONS: Final = {"sock": None}


@reducer("logging.Logger")
def reduce_logger(obj: logging.Logger, context: Context) -> Any:
    name = None if obj is logging.root else obj.name
    # not by getLogger(): in a copy its lock may be held by a thread that is not there
    if name is not None and logging.root.manager.loggerDict.get(name) is not obj:
        raise NotKept(f"the logger {name} cannot be kept: logging knows another by that name")
    state = configuration(obj)
    return get_logger, (name,), state, None, None, configure


def get_logger(name: str | None) -> logging.Logger:
    return logging.getLogger(name)


def configuration(logger: logging.Logger) -> dict[str, Any]:
    return {
        "level": logger.level,
        "propagate": logger.propagate,
        "disabled": logger.disabled,
        "filters": list(logger.filters),
        "handlers": list(logger.handlers),
    }


def configure(logger: logging.Logger, state: dict[str, Any]) -> None:
    logger.setLevel(state["level"])
    logger.propagate = state["propagate"]
    logger.disabled = state["disabled"]
    logger.filters[:] = state["filters"]
    if "handlers" in state:
        logger.handlers[:] = state["handlers"]


@reducer("logging.Manager")
def reduce_manager(obj: Any, context: Context) -> Any:
    return (manager, ()) if obj is logging.Logger.manager else NotImplemented


def manager() -> Any:
    return logging.Logger.manager


@reducer("logging.Handler")
def reduce_handler(obj: logging.Handler, context: Context) -> Any:
    if obj is logging.lastResort:
        return last_resort, ()
    state = {k: v for k, v in vars(obj).items() if k not in _LOCKS}
    state.update((k, v) for k, v in _CONNECTIONS.items() if k in state)
    if isinstance(obj, logging.FileHandler):
        state.update(stream=None, mode="a")
    return make, (type(obj),), state, None, None, set_up_handler


def last_resort() -> Any:
    return logging.lastResort


def set_up_handler(handler: logging.Handler, state: dict[str, Any]) -> None:
    vars(handler).update(state)
    handler.createLock()
    logging._addHandlerRef(handler)  # type: ignore[attr-defined]
    if handler.name:
        logging._handlers[handler.name] = handler  # type: ignore[attr-defined]
