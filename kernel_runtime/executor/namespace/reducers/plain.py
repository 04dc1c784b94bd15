"""Small types of the standard library that pickle leaves out although all of them can be seen."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from typing import Any

from kernel_runtime.executor.namespace.reducers.common import set_attributes
from kernel_runtime.executor.namespace.registry import Context, NotKept, reducer


@reducer(types.MappingProxyType)
def reduce_mapping_proxy(obj: Any, context: Context) -> Any:
    """Around the very mapping, which ``|`` with an operand of ours gives away."""
    return make_mapping_proxy, (obj | _Taker(),)


def make_mapping_proxy(mapping: Any) -> Any:
    return types.MappingProxyType(mapping)


class _Taker:
    def __ror__(self, mapping: Any) -> Any:
        return mapping


@reducer(type({}.keys()))
def reduce_keys(obj: Any, context: Context) -> Any:
    return dict.keys, (_viewed(obj),)


@reducer(type({}.values()))
def reduce_values(obj: Any, context: Context) -> Any:
    return dict.values, (_viewed(obj),)


@reducer(type({}.items()))
def reduce_items(obj: Any, context: Context) -> Any:
    return dict.items, (_viewed(obj),)


def _viewed(view: Any) -> Any:
    return view.mapping | _Taker()


@reducer("_struct.Struct")
def reduce_struct(obj: Any, context: Context) -> Any:
    return type(obj), (obj.format,)


@reducer("random.SystemRandom")
def reduce_system_random(obj: Any, context: Context) -> Any:
    """It holds nothing: the numbers come from the system."""
    return type(obj), ()


@reducer("os._Environ")
def reduce_environ(obj: Any, context: Context) -> Any:
    """The environment is a setting; a variable that is ``os.environ`` is it again."""
    if obj is os.environ:
        return environment, ()
    if obj is os.environb:
        return environment, ("environb",)
    return NotImplemented


def environment(name: str = "environ") -> Any:
    return getattr(os, name)


@reducer("_sre.SRE_Match", "re.Match")
def reduce_match(obj: Any, context: Context) -> Any:
    """By searching again where it was found: the same text gives the same match."""
    again = match_again(obj.re, obj.string, obj.pos, obj.endpos, obj.span())
    if again is None or again.regs != obj.regs:
        raise NotKept("a match cannot be kept where searching again finds another")
    return match_again, (obj.re, obj.string, obj.pos, obj.endpos, obj.span())


def match_again(pattern: Any, text: Any, start: int, end: int, span: tuple[int, int]) -> Any:
    for how in (pattern.search, pattern.match, pattern.fullmatch):
        found = how(text, start, end)
        if found is not None and found.span() == span:
            return found
    for found in pattern.finditer(text, start, end):
        if found.span() == span:
            return found
    return None


@reducer("tempfile.TemporaryDirectory")
def reduce_temporary_directory(obj: Any, context: Context) -> Any:
    """It removes its directory at its end, as before."""
    alive = obj._finalizer.alive
    state = {k: v for k, v in vars(obj).items() if k != "_finalizer"}
    return make_temporary_directory, (type(obj), obj.name, alive), state, None, None, set_attributes


def make_temporary_directory(cls: Any, name: str, alive: bool) -> Any:
    import weakref

    made = cls.__new__(cls)
    function = cls._cleanup
    warning = f"Implicitly cleaning up {made!r}" if hasattr(made, "name") else "cleaning up"
    made._finalizer = weakref.finalize(made, function, name, warn_message=warning)
    if not alive:
        made._finalizer.detach()
    return made


@reducer(types.ModuleType)
def reduce_module(obj: Any, context: Context) -> Any:
    """By name; one that nothing could import is kept with its names, if it was made by hand."""
    name = obj.__name__
    if _can_be_found(name):
        return import_module, (name,)
    if getattr(obj, "__file__", None) is not None or type(obj) is not types.ModuleType:
        raise NotKept(f"the module {name} cannot be kept: nothing finds it under that name")
    state = {k: v for k, v in vars(obj).items() if k not in ("__builtins__", "__loader__")}
    known = sys.modules.get(name) is obj
    return make_module, (name, known), state, None, None, set_attributes


def _can_be_found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def import_module(name: str) -> Any:
    __import__(name)
    return sys.modules[name]


def make_module(name: str, known: bool) -> Any:
    module = types.ModuleType(name)
    if known:
        sys.modules[name] = module
    return module
