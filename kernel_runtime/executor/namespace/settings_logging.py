"""Groups of settings (see ``settings``) of logging: levels, and each logger that was configured."""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

# configured by Jupyter's own libraries when they start, anew in each process
_OWN: Final = (
    *("traitlets", "tornado", "asyncio", "ipykernel", "IPython", "parso"),
    *("kernel_runtime", "ExecutorApp"),
)
_NAMES: Final = {
    logging.CRITICAL: "CRITICAL",
    logging.ERROR: "ERROR",
    logging.WARNING: "WARNING",
    logging.INFO: "INFO",
    logging.DEBUG: "DEBUG",
    logging.NOTSET: "NOTSET",
}


def levels() -> dict[str, Any] | None:
    """What holds for all loggers: the level below which nothing is logged, and named levels."""
    names = logging._levelToName
    added = {level: name for level, name in names.items() if _NAMES.get(level) != name}
    found = {
        "disabled": logging.root.manager.disable,
        "names": added,
        "raise": logging.raiseExceptions,
    }
    return None if found == {"disabled": 0, "names": {}, "raise": True} else found


def set_levels(value: dict[str, Any]) -> None:
    logging.disable(value["disabled"])
    for level, name in value["names"].items():
        logging.addLevelName(level, name)
    logging.raiseExceptions = value["raise"]


def configured() -> dict[str, logging.Logger]:
    """The loggers that are not as logging made them, by name; "root" is the root."""
    found: dict[str, logging.Logger] = {}
    known = logging.root.manager.loggerDict
    for name, logger in [("root", logging.root), *known.items()]:
        if isinstance(logger, logging.Logger) and _is_configured(logger):
            found[name] = logger
    return found


def _applications() -> Any:
    """The logger of the program that this is, as Jupyter's programs make one."""
    module: Any = sys.modules.get("traitlets.config.application")
    if module is None or not module.Application.initialized():
        return None
    return module.Application.instance().log


def _is_configured(logger: logging.Logger) -> bool:
    if logger.name.split(".")[0] in _OWN or logger is _applications():
        return False
    level = logging.WARNING if logger is logging.root else logging.NOTSET
    handlers = [each for each in logger.handlers if type(each) is not logging.NullHandler]
    return bool(
        logger.level != level
        or handlers
        or logger.filters
        or logger.disabled
        or not logger.propagate
    )
