"""What the rebuilding functions of several reducers share."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


def make(cls: Any) -> Any:
    """An empty object: its ``__init__`` is not run."""
    return cls.__new__(cls)


def set_attributes(obj: Any, attributes: Mapping[str, Any]) -> None:
    """Past ``__setattr__``, as pickle does it: that may be the user's."""
    vars(obj).update(attributes)


def is_importable(obj: Any) -> bool:
    """Whether another process finds this very object under its module and name."""
    module, path = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if module in (None, "__main__") or path is None:
        return False
    found = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found is obj
