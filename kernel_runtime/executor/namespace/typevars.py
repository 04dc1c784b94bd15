"""Type variables and new types of the session, which pickle names only."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from kernel_runtime.executor.namespace.registry import reducer


def _is_found(obj: Any) -> bool:
    module = getattr(obj, "__module__", None)
    if type(module) is not str or module == "__main__":
        return False
    return getattr(sys.modules.get(module), obj.__name__, None) is obj


@reducer("typing.TypeVar", "typing.ParamSpec", "typing.TypeVarTuple", once=False)
def reduce_type_variable(obj: Any, context: Any) -> Any:
    """TypeVar, ParamSpec and TypeVarTuple, unless a module has them."""
    if _is_found(obj):
        return NotImplemented
    options = {
        option: getattr(obj, f"__{option}__")
        for option in ("bound", "covariant", "contravariant", "infer_variance")
        if getattr(obj, f"__{option}__", None)
    }
    constraints = getattr(obj, "__constraints__", ())
    made_of = (type(obj).__name__, obj.__name__, constraints, options)
    return make_type_variable, made_of, obj.__module__, None, None, set_module


def make_type_variable(
    kind: str, name: str, constraints: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """Rebuild a type variable."""
    return getattr(importlib.import_module("typing"), kind)(name, *constraints, **options)


def set_module(obj: Any, module: str) -> None:
    """Say where it was made; it takes the rebuilding frame's module otherwise."""
    obj.__module__ = module


@reducer("typing.NewType", once=False)
def reduce_new_type(obj: Any, context: Any) -> Any:
    """NewType, unless a module has it."""
    if _is_found(obj):
        return NotImplemented
    return make_new_type, (obj.__name__, obj.__supertype__), obj.__module__, None, None, set_module


def make_new_type(name: str, of: Any) -> Any:
    """Rebuild a NewType."""
    return importlib.import_module("typing").NewType(name, of)


@reducer("typing.TypeAliasType", once=False)
def reduce_type_alias(obj: Any, context: Any) -> Any:
    """``type X = ...``, unless a module has it. Its value is evaluated."""
    if _is_found(obj):
        return NotImplemented
    return make_type_alias, (obj.__name__, obj.__value__, obj.__type_params__)


def make_type_alias(name: str, value: Any, parameters: tuple[Any, ...]) -> Any:
    """Rebuild a type alias."""
    alias = getattr(importlib.import_module("typing"), "TypeAliasType")  # noqa: B009
    return alias(name, value, type_params=parameters)
