"""The types of the arguments of commands (docs/protocol.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernel_runtime.errors import BadRequest

_TEXT: tuple[type, ...] = (str,)
_NAME: tuple[type, ...] = (int, str)
_TYPES: dict[str, tuple[type, ...]] = {
    "checkpoint": _NAME,
    "a": _NAME,
    "b": (*_NAME, type(None)),
    "history": (*_NAME, type(None)),
    "comment": _TEXT,
    "label": (*_TEXT, type(None)),
    "only": (*_TEXT, type(None)),
    "set": (dict, type(None)),
    "paths": (list, type(None)),
    "names": (list, type(None)),
    "checkpoints": (list,),
    "cells": (list,),
    "documents": (list,),
    "known": (list, type(None)),
    "path": _TEXT,
    "root": (*_TEXT, type(None)),
    "skip": (list,),
    "since": (*_NAME, type(None)),
    "until": (*_NAME, type(None)),
    "lease": (*_TEXT, type(None)),
    "seconds": (int, float),
    "wait": (int, float),
    "group": _TEXT,
    "text": _TEXT,
    "state": (dict,),
    **dict.fromkeys(
        (
            "pin",
            "pinned",
            "include_auto",
            "dry_run",
            "undo",
            "force",
            "events",
            "process",
            "each",
            "compensate",
            "partial",
            "reseed",
            "stop_on_difference",
            "renew",
            "keep_notebooks",
        ),
        (bool,),
    ),
}


def check_types(args: Mapping[str, Any]) -> None:
    """Raise BadRequest for an argument of the wrong type: nothing is guessed."""
    for name, value in args.items():
        wanted = _TYPES.get(name)
        if wanted is None:
            continue  # an unknown argument is refused by name
        if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
            names = " or ".join("null" if t is type(None) else t.__name__ for t in wanted)
            raise BadRequest(f"{name} must be {names}, not {value!r}. Nothing was done.")
