"""What the rebuilding functions of several reducers share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def make(cls: type) -> Any:
    """An empty object: its ``__init__`` is not run."""
    return cls.__new__(cls)


def set_attributes(obj: Any, attributes: Mapping[str, Any]) -> None:
    """Past ``__setattr__``, as pickle does it: that may be the user's."""
    vars(obj).update(attributes)
