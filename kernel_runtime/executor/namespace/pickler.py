"""Pickle a few variables at a time, each object in the way that its type needs.

The C pickler does the work. ``persistent_id`` sees every object first, and ends where something is
kept otherwise: the namespace, modules, classes of the session (they are units of their own, and
have one identity), memory stored apart. ``reducer_override`` sees every object that is not a plain
container or atom.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import math
import pickle
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Protocol

from kernel_runtime.executor.namespace import code, dill_way, registry, sets
from kernel_runtime.executor.namespace.reducers.common import set_attributes
from kernel_runtime.executor.namespace.registry import NotKept
from kernel_runtime.executor.namespace.session import SessionState

Handler = Callable[["UnitPickler", Any], Any]

registry.by_reference(
    *(f"types:{name}" for name in types.__all__ if name.endswith("Type")),
    *("sys:stdin", "sys:stdout", "sys:stderr", "sys:__stdin__", "sys:__stdout__"),
    *("sys:__stderr__", "sys:path", "sys:argv", "sys:meta_path", "sys:modules", "sys:warnoptions"),
    *("os:environ", "os:environb", "warnings:filters", "random:_inst", "numpy:nan", "math:nan"),
    *("matplotlib:rcParams", "dataclasses:_EMPTY_METADATA", "inspect:_empty"),
)
_SENTINELS: Final = frozenset(
    {
        "builtins.object",
        "dataclasses._MISSING_TYPE",
        "dataclasses._FIELD_BASE",
        "dataclasses._KW_ONLY_TYPE",
        "dataclasses._HAS_DEFAULT_FACTORY_CLASS",
    }
)
_SHELL_PARTS: Final = (
    *("kernel", "parent", "display_pub", "displayhook", "history_manager", "events", "compile"),
    *("comm_manager", "input_transformer_manager", "magics_manager", "Completer", "user_ns_hidden"),
)
_VALUES: Final = frozenset(
    {
        *(
            "builtins.NoneType",
            "builtins.bool",
            "builtins.int",
            "builtins.float",
            "builtins.complex",
        ),
        *("builtins.tuple", "builtins.frozenset", "builtins.range", "builtins.slice"),
        *("builtins.code", "builtins.builtin_function_or_method", "builtins.method"),
        *("builtins.method_descriptor", "builtins.wrapper_descriptor", "builtins.method-wrapper"),
        *("builtins.getset_descriptor", "builtins.member_descriptor", "builtins.ellipsis"),
        *("builtins.NotImplementedType", "builtins.classmethod_descriptor", "builtins.module"),
        *("datetime.date", "datetime.time", "datetime.timedelta", "datetime.tzinfo"),
        *("decimal.Decimal", "fractions.Fraction", "uuid.UUID", "re.Pattern", "pathlib.PurePath"),
        *("pathlib._local.PurePath", "enum.Enum", "ipaddress._IPAddressBase", "zoneinfo.ZoneInfo"),
        *("types.UnionType", "types.GenericAlias", "typing._GenericAlias", "typing._SpecialForm"),
        *("numpy.dtype", "numpy.generic", "numpy.ufunc", "numpy._NoValueType"),
        *("pandas._libs.tslibs.nattype._NaT", "pandas._libs.missing.NAType"),
        *("pandas.core.dtypes.base.ExtensionDtype", "pandas._libs.tslibs.offsets.BaseOffset"),
        *("pandas._libs.tslibs.period._Period", "pandas._libs.internals.BlockPlacement"),
        *("polars.datatypes.classes.DataType", "torch.dtype", "torch.device", "torch.Size"),
    }
)
"""Types whose objects are the same wherever they are: nobody asks which one it is."""
_names_of: Final = vars(types.ModuleType)["__dict__"].__get__
_UNNAMED: Final = frozenset({int, bool, type(None)})
_LARGE: Final = 64 << 10
_HEAP_TYPE: Final = 1 << 9
_IMMUTABLE_TYPE: Final = 1 << 8


class _Memory:
    """Stands for memory that is stored apart from the stream."""

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory


class Making(NamedTuple):
    """How an instance is made anew."""

    maker: type | None
    """Whose ``__new__`` does it, past one of the session: that would act a second time, and need
    not take what pickle calls it with, nothing."""
    is_doubtful: bool
    """Whether a ``__new__`` is called that may want more than it is given."""
    is_asked_too_early: bool
    """Whether looking for ``__setstate__`` would call a ``__getattr__`` of the session, on an
    instance that has no attributes yet: it may look for one of them for ever."""


class Keeper:
    """What all picklers of one dump know."""

    def __init__(self, session: SessionState) -> None:
        registry.load_reducers()
        self.session = session
        self.known: dict[int, Any] = {}
        """By id: a persistent id (tuple), or the number of the root that an object belongs to."""
        self.alive: list[Any] = []
        """What must keep its id until the end of the dump."""
        self.classes: dict[str, type] = {}
        self.reduced: dict[int, tuple[Any, Any]] = {}
        self.sources: set[str] = set()
        self._class_keys: dict[int, str] = {}
        self._found: dict[int, tuple[str, str] | None] = {}
        self._handlers: dict[type, Handler] = {}
        self._is_value: dict[type, bool] = {}
        self._makings: dict[type, Making] = {}
        self.by_name: set[int] = set()
        self._learn()

    def _learn(self) -> None:
        known = self.known
        for name, module in list(sys.modules.items()):
            if not issubclass(type(module), types.ModuleType):
                continue
            names = _names_of(module)  # asked past lazy modules, which would be loaded
            if name != "__main__" and names.get("__spec__") is None and name != "builtins":
                continue  # nothing can import it: a reducer knows what to do
            known.setdefault(id(module), ("m", name))
            known.setdefault(id(names), ("d", name))
            if name == "__main__":
                continue
            for attribute, value in list(names.items()):
                kind = type(value)
                if kind in (str, int, types.FunctionType, type, dict, list):
                    continue
                is_nan = kind is float and math.isnan(value)
                if is_nan or registry.name_of(kind) in _SENTINELS:
                    known.setdefault(id(value), ("r", f"{name}:{attribute}"))
        for place in registry.references():
            name, _, path = place.partition(":")
            value = sys.modules.get(name)
            for part in path.split("."):
                value = getattr(value, part, None)
            if value is not None:
                known[id(value)] = ("r", place)
        session = self.session
        if session.shell is not None:
            known[id(session.shell)] = ("s", "")
            parts = ((part, getattr(session.shell, part, None)) for part in _SHELL_PARTS)
            known.update({id(value): ("s", part) for part, value in parts if value is not None})
        known[id(session.outputs)] = ("O",)
        known[id(session.inputs)] = ("I",)
        known[id(session.namespace)] = ("n",)

    def class_key(self, cls: type) -> str:
        """The name by which a class of the session is kept; empty for one that can be imported."""
        key = self._class_keys.get(id(cls))
        if key is None:
            key = ""
            # One of C's own that no name leads to is not the session's: it fails where it is met.
            flags = type.__dict__["__flags__"].__get__(cls)
            is_c = not flags & _HEAP_TYPE or flags & _IMMUTABLE_TYPE
            if not is_c and self.found(cls) is None:
                key = wanted = registry.name_of(cls)
                number = 1
                while key in self.classes:
                    number += 1
                    key = f"{wanted}#{number}"
                self.classes[key] = cls
            self._class_keys[id(cls)] = key
            self.alive.append(cls)
        return key

    def found(self, obj: Any) -> tuple[str, str] | None:
        """``code.found_by_name``, asked once for each object."""
        if id(obj) not in self._found:
            self._found[id(obj)] = code.found_by_name(obj)
            self.alive.append(obj)
        return self._found[id(obj)]

    def own(self, objects: Iterable[Any], root: int) -> None:
        """Note to which root these belong, of those of which it matters which one it is."""
        known, is_value, alive, by_name = self.known, self._is_value, self.alive, self.by_name
        for obj in objects:
            kind = type(obj)
            value = is_value.get(kind)
            if value is None:
                value = is_value[kind] = self._value_kind(kind)
            if kind is str or kind is bytes:
                value = len(obj) < _LARGE
            if value or id(obj) in known or id(obj) in by_name:
                continue
            known[id(obj)] = root
            alive.append(obj)

    def _value_kind(self, kind: type) -> bool:
        """Whether it does not matter if several variables come back with a copy each."""
        if issubclass(kind, (type, enum.Enum)):
            return True
        mro = type.__dict__["__mro__"].__get__(kind)
        # A subclass of the user's of int and the like has attributes: it is an object.
        return any(registry.name_of(c) in _VALUES for c in mro) and not self.class_key(kind)

    def making(self, kind: type) -> Making:
        """How instances of a type are made anew where pickle's way is the type's own."""
        found = self._makings.get(kind)
        if found is None:
            found = self._makings[kind] = self._find_making(kind)
        return found

    def _find_making(self, kind: type) -> Making:
        maker, is_passed, members = None, False, {}
        for base in reversed(type.__dict__["__mro__"].__get__(kind)):
            names = type.__dict__["__dict__"].__get__(base)
            members.update(names)
            if "__new__" in names:
                is_own = bool(self.class_key(base))
                maker, is_passed = (maker, True) if is_own else (base, False)
        arguments = members.get("__getnewargs__"), members.get("__getnewargs_ex__")
        if any(type(each) is types.FunctionType for each in arguments):
            is_passed = False  # it says itself what its ``__new__`` takes
        getter = members.get("__getattr__")
        is_asked = type(getter) is types.FunctionType and getter.__module__ == "__main__"
        return Making(
            maker if is_passed else None,
            is_doubtful=not is_passed and maker is not object and not any(arguments),
            is_asked_too_early=is_asked and "__setstate__" not in members,
        )

    def handler(self, kind: type) -> Handler:
        """How objects of this exact type are reduced."""
        handler = self._handlers.get(kind)
        if handler is None:
            handler = self._handlers[kind] = self._choose(kind)
        return handler

    def _choose(self, kind: type) -> Handler:
        if kind is types.FunctionType:
            return _function
        registered = registry.find(kind)
        if kind is Placements:
            return _placements
        if registered is not None:
            return functools.partial(_registered, registered)
        if issubclass(kind, type):
            return _class
        if issubclass(kind, enum.Enum) and self.class_key(kind):
            return code.reduce_member
        return _own_way


class Placements:
    """Comes last in what is pickled, and becomes the pickler's ``placements``."""


class File(Protocol):
    """Where a pickler writes."""

    def write(self, data: bytes) -> Any:
        """Take some bytes."""


class UnitPickler(pickle.Pickler):
    """Pickles one unit; the context that reducers are given.

    ``own`` are the keys of the classes that are written here and not referred to. With ``root``
    (the number of a variable that is tried alone), an object of an earlier root ends the walk, and
    ``shares`` gets that root. ``notices`` is None where they have been told already.
    """

    def __init__(
        self, keeper: Keeper, file: File, own: Iterable[str], root: int | None, notices: Any
    ) -> None:
        self.memory: list[memoryview] = []
        self.plain: list[pickle.PickleBuffer] = []
        super().__init__(file, 5, buffer_callback=self._take_buffer)
        self.keeper = keeper
        self.session = keeper.session
        self.own = frozenset(own)
        self.root = root
        self.shares: set[int] = set()
        self.needs: set[str] = set()
        self.kinds: set[type] = set()
        self.modules: set[str] = set()
        self.sets: list[set[Any]] = []
        self.is_doubtful = False
        """Whether it may not be possible to make an instance anew, whatever its type."""
        self.culprit: Any = None
        self._notices = notices
        self._known = keeper.known

    # -- for reducers -----------------------------------------------------------------------

    def notice(self, text: str) -> None:
        """See ``registry.Context``."""
        if self._notices is not None and text not in self._notices:
            self._notices.append(text)

    def block(self, memory: memoryview) -> Any:
        """See ``registry.Context``."""
        stand_in = _Memory(memory)
        self._known[id(stand_in)] = ("b", len(self.memory))
        self.keeper.alive.append(stand_in)
        self.memory.append(memory)
        return stand_in

    def see_source(self, filename: str) -> None:
        """The source of code in this file is wanted for tracebacks."""
        self.keeper.sources.add(filename)

    def placements(self) -> list[Any]:
        """How the sets that were written so far are put in order: (set, items, size)."""
        found = {id(seen): seen for seen in self.sets}
        orders = ((seen, sets.placement(seen)) for seen in found.values())
        return [(seen, *order) for seen, order in orders if order is not None]

    # -- for the C pickler ------------------------------------------------------------------

    def _take_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < _LARGE:
            return True
        self.plain.append(buffer)
        return False

    def persistent_id(self, obj: Any) -> Any:
        """What stands for an object that is not written here."""
        kind = type(obj)
        if kind in _UNNAMED:
            return None
        if kind is set:
            self.sets.append(obj)
        hit = self._known.get(id(obj))
        if hit is None:
            if not issubclass(kind, type):
                return None
            key = self.keeper.class_key(obj)
            if not key or key in self.own:
                return None
            self.needs.add(key)
            return ("c", key)
        if type(hit) is int:
            if self.root is None:
                return None
            self.shares.add(hit)
            return ("n",)
        if hit[0] == "m":
            self.modules.add(hit[1])
        return hit

    def reducer_override(self, obj: Any) -> Any:
        """What ``__reduce_ex__`` would give, or NotImplemented for functions found by name."""
        kind = type(obj)
        try:
            result = self.keeper.handler(kind)(self, obj)
        except (RecursionError, MemoryError):
            raise
        except BaseException:
            if self.culprit is None:
                self.culprit = obj
            raise
        # placements are in every unit, and what goes by its name is told by its module
        if kind is not Placements and id(obj) not in self.keeper.by_name:
            self.kinds.add(kind)
        return result


def _placements(pickler: UnitPickler, obj: Any) -> Any:
    return list, (), None, iter(pickler.placements())


def _function(pickler: UnitPickler, obj: Any) -> Any:
    found = pickler.keeper.found(obj)
    if found is not None:
        pickler.keeper.by_name.add(id(obj))
        pickler.modules.add(found[0])
        return NotImplemented
    return code.reduce_function(obj, pickler)


def _class(pickler: UnitPickler, obj: Any) -> Any:
    if pickler.keeper.class_key(obj):
        return code.reduce_class(obj, pickler)
    return NotImplemented


def _registered(registered: registry.Registered, pickler: UnitPickler, obj: Any) -> Any:
    reduced = pickler.keeper.reduced
    known = reduced.get(id(obj))
    if known is not None:
        return known[1]
    result = registered.reduce(obj, pickler)
    if result is NotImplemented:
        if issubclass(type(obj), type):
            return _class(pickler, obj)
        result = _own_way(pickler, obj)
    elif registered.is_asked_once:
        reduced[id(obj)] = (obj, result)
    return result


def _own_way(pickler: UnitPickler, obj: Any) -> Any:
    """pickle's way: ``copyreg``, then the object's own; dill's where there is neither."""
    kind = type(obj)
    how = copyreg.dispatch_table.get(kind)
    try:
        result = how(obj) if how is not None else obj.__reduce_ex__(5)
    except (RecursionError, MemoryError, NotKept):
        raise
    except Exception as error:
        if pickler.keeper.class_key(kind):
            text = f"{type(error).__name__}: {error}"
            raise NotKept(f"a {kind.__name__} refuses to be pickled ({text})") from error
        return dill_way.reduce(obj)
    if type(result) is not str:
        return _made(pickler, kind, tuple(result))
    # It goes by its name. Is there anything under that name in a fresh process?
    module = getattr(obj, "__module__", None) or registry.module_of(obj, result)
    found: Any = sys.modules.get(module)
    for part in result.split("."):
        found = getattr(found, part, None)
    if module == "__main__" or found is not obj:
        return copyreg.__newobj__, (kind,), getattr(obj, "__dict__", None)  # type: ignore[attr-defined]
    pickler.keeper.by_name.add(id(obj))
    pickler.modules.add(module)
    return result


def _made(pickler: UnitPickler, kind: type, result: tuple[Any, ...]) -> tuple[Any, ...]:
    """As pickle has it, where that makes an instance anew (see ``Making``)."""
    if result[0] is not copyreg.__newobj__ or result[1][0] is not kind:  # type: ignore[attr-defined]
        return result
    making = pickler.keeper.making(kind)
    pickler.is_doubtful |= making.is_doubtful
    if making.maker is not None:
        result = make_past, (making.maker, *result[1]), *result[2:]
    if making.is_asked_too_early and type(result[2]) is dict:
        result = *result[:5], set_attributes
    return result


def make_past(maker: Any, kind: type, *arguments: Any) -> Any:
    """An instance as the base ``maker`` makes it."""
    return maker.__new__(kind, *arguments)
