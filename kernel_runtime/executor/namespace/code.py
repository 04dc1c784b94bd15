"""Functions and classes made in the session, kept by value.

A class is made in two steps: a bare one, known to the unpickler from then on, then its members, so
that methods may refer to it. No ``__init_subclass__``, ``__set_name__`` or metaclass of the
session's runs again: what they did is in the members.
"""

from __future__ import annotations

import abc
import dis
import enum
import gc
import importlib
import importlib.util
import marshal
import re
import sys
import types
from collections.abc import Iterator
from typing import Any, Final

from kernel_runtime.executor.namespace.registry import reducer

_mro_of: Final = type.__dict__["__mro__"].__get__
_members_of: Final = type.__dict__["__dict__"].__get__
_MAGIC: Final = int.from_bytes(importlib.util.MAGIC_NUMBER, "little")
_BARE: Final = ("__module__", "__qualname__", "__doc__")
_NOT_MEMBERS: Final = frozenset({"_abc_impl", "__annotations_cache__", "__classdictcell__"})
_ENUM_MAPS: Final = ("_member_map_", "_value2member_map_")

_later: Final[list[tuple[type, str, Any]]] = []


class OtherPython(Exception):
    """Code of another version of Python cannot be loaded; the message is for the user."""


# -- functions ------------------------------------------------------------------------------


def reduce_function(function: types.FunctionType, context: Any) -> tuple[Any, ...]:
    """A function by its code, globals and cells; the rest is set afterwards."""
    state: dict[str, Any] = {}
    for name in ("__defaults__", "__kwdefaults__", "__doc__", "__module__", "__type_params__"):
        value = getattr(function, name, None)
        if value:
            state[name] = value
    state["__qualname__"] = function.__qualname__
    annotate = getattr(function, "__annotate__", None)
    if annotate is not None:
        state["__annotate__"] = annotate
    elif function.__annotations__:
        state["__annotations__"] = function.__annotations__
    if function.__dict__:
        state["__dict__"] = function.__dict__
    names = _names_for(function, context)
    made_of = (function.__code__, names, function.__name__, function.__closure__)
    return make_function, made_of, state, None, None, set_function


def _names_for(function: types.FunctionType, context: Any) -> dict[str, Any]:
    """A function's globals: of a copy of the session's names, those that it can ask for.

    attrs gives what it generates such a copy. All variables of that moment would be kept with it,
    and one of them that cannot be kept would take the class with it.
    """
    names: dict[str, Any] = function.__globals__
    if names is context.session.namespace or names.get("__name__") != "__main__":
        return names
    own = [each for each in names.values() if type(each) is types.FunctionType]
    sharing = (function, *(each for each in own if each.__globals__ is names))
    if any(_sets_globals(each.__code__) for each in sharing):
        return names
    wanted = {"__name__"}
    if getattr(function, "__annotate__", None) is None:
        for annotation in function.__annotations__.values():
            if isinstance(annotation, str):  # typing.get_type_hints looks it up there
                wanted.update(re.findall(r"\w+", annotation))
    for code in _with_inner(function.__code__):
        wanted.update(code.co_names)
    return {name: value for name, value in names.items() if name in wanted}


def _sets_globals(code: types.CodeType) -> bool:
    setters = ("STORE_GLOBAL", "DELETE_GLOBAL")
    return any(
        i.opname in setters for each in _with_inner(code) for i in dis.get_instructions(each)
    )


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _with_inner(each)


def make_function(
    code: types.CodeType,
    names: dict[str, Any],
    name: str,
    closure: tuple[types.CellType, ...] | None,
) -> types.FunctionType:
    """Rebuild a function without its defaults and attributes."""
    return types.FunctionType(code, names, name, None, closure)


def set_function(function: types.FunctionType, state: dict[str, Any]) -> None:
    """Give a rebuilt function its defaults and attributes."""
    function.__doc__ = None
    for name, value in state.items():
        setattr(function, name, value)


@reducer(types.CodeType, once=False)
def reduce_code(code: types.CodeType, context: Any) -> tuple[Any, ...]:
    """Code as marshal writes it: the same bytes for the same code in every process."""
    context.see_source(code.co_filename)
    try:
        # Later formats mark what is referred to more than once, which differs from run to run.
        data = marshal.dumps(code, 2)
    except ValueError:
        data = marshal.dumps(code)
    return load_code, (data, _MAGIC, sys.version_info[:2])


def load_code(data: bytes, magic: int, version: tuple[int, int]) -> Any:
    """Rebuild code; raises OtherPython in another version of Python."""
    if magic != _MAGIC:
        made, here = (".".join(map(str, v)) for v in (version, sys.version_info[:2]))
        raise OtherPython(f"its code was compiled by Python {made} and this is Python {here}")
    return marshal.loads(data)


@reducer(types.CellType, once=False)
def reduce_cell(cell: types.CellType, context: Any) -> tuple[Any, ...]:
    """A variable that functions share; it may not be set yet."""
    try:
        content = (cell.cell_contents,)
    except ValueError:
        return make_cell, ()
    if type(content[0]) is dict and (cls := _class_of(content[0])) is not None:
        return make_cell, (), (cls,), None, None, set_class_cell
    return make_cell, (), content, None, None, set_cell


def _class_of(members: dict[str, Any]) -> type | None:
    """The class whose own dictionary this is.

    Since Python 3.12 a scope within a class, since 3.14 each annotated method, can hold it in a
    cell (``__classdict__``, PEP 695 and PEP 649).
    """
    if "__module__" not in members or "__qualname__" in members:
        return None  # a class's own has the one and not the other
    kinds = (types.MemberDescriptorType, types.GetSetDescriptorType)
    owners = (each.__objclass__ for each in members.values() if type(each) in kinds)
    found = next((owner for owner in owners if _is_dictionary_of(owner, members)), None)
    if found is None:  # with empty __slots__ nothing in it says whose it is
        referrers = gc.get_referrers(members)
        found = next((each for each in referrers if _is_dictionary_of(each, members)), None)
    return found


def _is_dictionary_of(cls: Any, members: dict[str, Any]) -> bool:
    return isinstance(cls, type) and _dictionary_of(cls) is members


def _dictionary_of(cls: type) -> dict[str, Any]:
    members: dict[str, Any] = gc.get_referents(_members_of(cls))[0]
    return members


def set_class_cell(cell: types.CellType, content: tuple[type]) -> None:
    """Fill a rebuilt cell with the dictionary of a class itself."""
    cell.cell_contents = _dictionary_of(content[0])


def make_cell() -> types.CellType:
    """An empty cell."""
    return types.CellType()


def set_cell(cell: types.CellType, content: tuple[Any]) -> None:
    """Fill a rebuilt cell."""
    cell.cell_contents = content[0]


@reducer(types.MethodType, once=False)
def reduce_method(method: types.MethodType, context: Any) -> Any:
    """A bound method: by name where the name leads to it, else by its function.

    By its function, too, in what is written with the class itself: the class may have no members
    yet when the method is read (validators of pydantic's models hang on the models).
    """
    function, owner = method.__func__, method.__self__
    name = getattr(function, "__name__", None)
    kind = owner if isinstance(owner, type) else type(owner)
    if context.keeper.class_key(kind) in context.own:
        return make_method, (function, owner)
    if type(name) is str and name not in (getattr(owner, "__dict__", None) or {}):
        for base in _mro_of(kind):
            if name in _members_of(base):
                if _members_of(base)[name] is function:
                    return getattr, (owner, name)
                break
    if isinstance(owner, type) and type(name) is str:
        for base in _mro_of(owner):
            member = _members_of(base).get(name)
            if isinstance(member, classmethod) and member.__func__ is function:
                return getattr, (owner, name)
    return make_method, (function, owner)


def make_method(function: Any, owner: Any) -> types.MethodType:
    """A bound method; its type has no name by which it could be found."""
    return types.MethodType(function, owner)


@reducer(staticmethod, classmethod, once=False)
def reduce_wrapped(obj: Any, context: Any) -> tuple[Any, ...]:
    """staticmethod and classmethod."""
    return type(obj), (obj.__func__,)


@reducer(property, once=False)
def reduce_property(obj: property, context: Any) -> tuple[Any, ...]:
    """property and its subclasses."""
    state = getattr(obj, "__dict__", None) or None
    return type(obj), (obj.fget, obj.fset, obj.fdel, obj.__doc__), state


@reducer(super, once=False)
def reduce_super(obj: Any, context: Any) -> tuple[Any, ...]:
    """The object that ``super()`` gives."""
    made_of = (obj.__thisclass__,) if obj.__self__ is None else (obj.__thisclass__, obj.__self__)
    return super, made_of


# -- classes --------------------------------------------------------------------------------


def reduce_class(cls: type, context: Any) -> tuple[Any, ...]:
    """A class by value: what a bare one is made of, then all of its members."""
    members = dict(_members_of(cls))
    bare = {name: members[name] for name in _BARE if type(members.get(name)) is str}
    bare["__qualname__"] = cls.__qualname__
    for name in ("__dict__", "__weakref__"):
        # dataclass(slots=True) leaves those of the class that it replaces.
        if getattr(members.get(name), "__objclass__", cls) is not cls:
            del members[name]
    own = [
        name
        for name, member in members.items()
        if type(member) in (types.MemberDescriptorType, types.GetSetDescriptorType)
        and member.__objclass__ is cls
    ]
    if "__slots__" in members:
        bare["__slots__"] = tuple(own)
        if type(members["__slots__"]) not in (str, tuple, list, dict, set, frozenset):
            members["__slots__"] = tuple(own)
    for name in (*own, *bare, *_NOT_MEMBERS):
        if name != "__slots__":
            members.pop(name, None)
    state: dict[str, Any] = {"members": members}
    enumerated = None
    if issubclass(cls, enum.Enum):
        enumerated, state["values"] = _enum_parts(cls, members)
    if isinstance(cls, abc.ABCMeta):
        state["registered"] = _registered(cls)
    made_of = (type(cls), cls.__name__, cls.__bases__, bare, enumerated)
    return make_class, made_of, state, None, None, set_class


def make_class(
    metaclass: type[type],
    name: str,
    bases: tuple[type, ...],
    bare: dict[str, Any],
    enumerated: Any,
) -> type:
    """A class without members. Its metaclass is not asked."""
    cls = _quietly(metaclass, name, bases, bare)
    if isinstance(cls, abc.ABCMeta):
        _abc_tools("_abc_init")(cls)
    if enumerated is not None:
        _make_enum(cls, *enumerated)
    return cls


class _Slotted:
    """Comes first among the bases for a moment, so that no ``__init_subclass__`` is called."""

    __slots__ = ()

    def __init_subclass__(cls, **_: Any) -> None:
        pass


class _Open:
    """The same for classes whose instances have a ``__dict__`` by their bases."""

    __init_subclass__ = _Slotted.__init_subclass__


def _quietly(
    metaclass: type[type], name: str, bases: tuple[type, ...], bare: dict[str, Any]
) -> type:
    hooks = {c for base in bases for c in _mro_of(base) if "__init_subclass__" in _members_of(c)}
    for shield in (_Slotted, _Open) if hooks - {object} else ():
        try:
            cls = type.__new__(metaclass, name, (shield, *bases), dict(bare))
            type.__setattr__(cls, "__bases__", bases)
        except TypeError:
            continue  # instances would be laid out otherwise
        return cls
    return type.__new__(metaclass, name, bases, dict(bare))


def set_class(cls: type, state: dict[str, Any]) -> None:
    """Give a bare class its members, past what its metaclass does about it."""
    for name, member in state["members"].items():
        if name == "__init_subclass__":
            # It ran when the subclasses were made; they are being made again, all of them.
            _later.append((cls, name, member))
        elif name in _ENUM_MAPS and name in _members_of(cls):
            _members_of(cls)[name].update(member)
        else:
            type.__setattr__(cls, name, member)
    for member, attributes in state.get("values", ()):
        member.__dict__.update(attributes)
    for registered in state.get("registered", ()):
        _later.append((cls, "", registered))


def finish_classes() -> None:
    """Once all classes are there: what must not act, or cannot, while they are made."""
    waiting = list(_later)
    _later.clear()
    for cls, name, member in waiting:
        if name:
            type.__setattr__(cls, name, member)
        elif not issubclass(member, cls):
            abc.ABCMeta.register(cls, member)  # type: ignore[arg-type]


def _abc_tools(name: str) -> Any:
    return getattr(importlib.import_module("_abc"), name)


def _registered(cls: type) -> list[type]:
    found = [reference() for reference in _abc_tools("_get_dump")(cls)[0]]
    return sorted((c for c in found if c is not None), key=lambda c: (c.__module__, c.__qualname__))


# -- enumerations ---------------------------------------------------------------------------


def _enum_parts(cls: type, members: dict[str, Any]) -> tuple[Any, list[Any]]:
    """What bare members are made of, and their attributes; ``members`` loses the name's map."""
    by_name: dict[str, Any] = members.pop("_member_map_")
    by_value: dict[Any, Any] = members["_value2member_map_"]
    named = {id(member) for member in by_name.values()}
    base = members.get("_member_type_", object)
    seen: dict[int, str] = {}
    bare, values = [], []
    for name, member in by_name.items():
        alias_of = seen.setdefault(id(member), name)
        bare.append((name, alias_of, _new_arguments(member, base)))
        if alias_of == name:
            values.append((member, member.__dict__))
    unnamed = []
    for value, member in by_value.items():
        if id(member) not in named:
            unnamed.append((value, _new_arguments(member, base)))
            values.append((member, member.__dict__))
    return (base, bare, unnamed), values


def _new_arguments(member: Any, base: type) -> tuple[Any, ...]:
    arguments = getattr(base, "__getnewargs__", None)
    return () if arguments is None else arguments(member)


def _make_enum(cls: type, base: Any, bare: list[Any], unnamed: list[Any]) -> None:
    by_name: dict[str, Any] = {}
    for name, alias_of, arguments in bare:
        if name != alias_of:
            by_name[name] = by_name[alias_of]
            continue
        by_name[name] = member = base.__new__(cls, *arguments)
        member._name_ = name  # its hash is that of its name, and it may be a key soon
    by_value = {value: base.__new__(cls, *arguments) for value, arguments in unnamed}
    for member in by_value.values():
        member._name_ = None
    type.__setattr__(cls, "_member_map_", by_name)
    type.__setattr__(cls, "_value2member_map_", by_value)


def reduce_member(context: Any, member: Any) -> tuple[Any, ...]:
    """A member of an enumeration made in the session: by its class and name, or its value."""
    cls = type(member)
    name = member._name_
    if cls._member_map_.get(name) is member:
        return enum_member, (cls, name)
    return enum_value, (cls, member._value_)


def enum_member(cls: Any, name: str) -> Any:
    """The member of this name, also while its class is being made."""
    return _members_of(cls)["_member_map_"][name]


def enum_value(cls: Any, value: Any) -> Any:
    """The member of this value, also one that has no name."""
    found = _members_of(cls)["_value2member_map_"].get(value)
    return cls(value) if found is None else found


# -- what can be found by its name ----------------------------------------------------------


def found_by_name(obj: Any) -> tuple[str, str] | None:
    """(module, qualified name) that lead a fresh process to this function or class, or None."""
    if isinstance(obj, type):
        module = type.__dict__["__module__"].__get__(obj)
        qualname = type.__dict__["__qualname__"].__get__(obj)
    else:
        module = getattr(obj, "__module__", None)
        qualname = getattr(obj, "__qualname__", None)
    if type(module) is not str or type(qualname) is not str or module == "__main__":
        return None
    loaded = sys.modules.get(module)
    if loaded is None or (getattr(loaded, "__spec__", None) is None and module != "builtins"):
        return None
    found: Any = loaded
    for part in qualname.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            return None
    return (module, qualname) if found is obj else None
