"""Which versions of modules are loaded, without importing or running anything."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Sequence
from typing import Any, Final

_members_of: Final = vars(types.ModuleType)["__dict__"].__get__


def loaded(names: Sequence[str]) -> dict[str, Any]:
    """``modules``: name: version and directory of those that are loaded and say so; ``path``."""
    found = {}
    for name in names:
        module = sys.modules.get(name)
        if not isinstance(module, types.ModuleType):
            continue
        members = _members_of(module)
        version, file = members.get("__version__"), members.get("__file__")
        if type(version) is str and type(file) is str:
            place = os.path.dirname(file)
            if "__path__" in members:
                place = os.path.dirname(place)
            found[name] = [version, place]
    return {"modules": found, "path": [entry for entry in list(sys.path) if type(entry) is str]}
