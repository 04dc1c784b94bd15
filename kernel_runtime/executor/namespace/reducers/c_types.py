"""ctypes: structures, unions and arrays that a cell has defined; pointers to types.

Their metaclasses lay instances out, so a bare class is made by them, and ``_fields_`` is set before
all else. Types that ctypes makes of others (arrays, pointers, byte orders) are asked of it again.
Instances go as ctypes pickles them: by their bytes, unless there is a pointer in them.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from kernel_runtime.executor.namespace.registry import Context, NotKept, reducer

_BARE: Final = (
    *("__module__", "__qualname__", "__doc__"),
    *("_type_", "_length_", "_pack_", "_align_", "_layout_"),
)
_FIRST: Final = ("_anonymous_", "_fields_")
_ORDERS: Final = ("__ctype_be__", "__ctype_le__")


@reducer(
    *("_ctypes.PyCStructType", "_ctypes.UnionType", "_ctypes.PyCArrayType"),
    *("_ctypes.PyCSimpleType", "_ctypes.PyCPointerType", "_ctypes.PyCFuncPtrType"),
    once=False,
)
def reduce_c_type(cls: Any, context: Any) -> Any:
    if not context.keeper.class_key(cls):
        return NotImplemented  # it goes by its name
    ctypes = sys.modules["ctypes"]
    if issubclass(cls, ctypes._CFuncPtr):
        raise NotKept("a type of C functions cannot be kept: make it again")
    if issubclass(cls, ctypes._Pointer) and ctypes.POINTER(cls._type_) is cls:
        return make_pointer_type, (cls._type_,)
    if issubclass(cls, ctypes.Array) and cls._type_ * cls._length_ is cls:
        return make_array_type, (cls._type_, cls._length_)
    for order in _ORDERS if "_type_" in vars(cls) else ():
        other = getattr(cls, _ORDERS[1 - _ORDERS.index(order)], cls)
        if getattr(other, order, None) is cls and not context.keeper.class_key(other):
            return getattr, (other, order)
    return _reduce_class(cls, context)


def make_pointer_type(target: Any) -> Any:
    import ctypes

    return ctypes.POINTER(target)


def make_array_type(item: Any, length: int) -> Any:
    return item * length


def _reduce_class(cls: Any, context: Context) -> Any:
    members = dict(vars(cls))
    fields = {name for name, member in members.items() if type(member).__name__ == "CField"}
    for name in (*fields, "__dict__", "__weakref__"):
        members.pop(name, None)
    bare = {name: members.pop(name) for name in _BARE if name in members}
    bare["__qualname__"] = cls.__qualname__
    made_of = (cls.__name__, cls.__bases__, bare)
    return make_c_class, made_of, members, None, None, set_c_class


def make_c_class(name: str, bases: Any, bare: dict[str, Any]) -> Any:
    """A class without fields yet, which other types can refer to. Its metaclass has no name."""
    return type(bases[0])(name, bases, bare)


def set_c_class(cls: Any, members: dict[str, Any]) -> None:
    for name in (*_FIRST, *(name for name in members if name not in _FIRST)):
        if name in members:
            setattr(cls, name, members[name])
