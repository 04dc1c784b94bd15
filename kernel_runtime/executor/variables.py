"""Describe the user's variables after a cell, without running any of the user's code.

Called in the user's process by the executor at each checkpoint. Standard library only; what is
said about numpy, pandas, polars and torch is said only when the user has imported them.

Keeps to:  the exact type of an object decides what is looked at, so no ``repr``, ``len``, ``==``,
           ``getattr`` or ``__sizeof__`` of a class of the user's runs and no lazy proxy wakes.
           Never raises, keeps no reference (the result holds text and numbers only).
Cost:      about 2 µs for a variable with a plain value; for content digests ``budget_s`` in all.
           Over the budget, digests are left out and comparing falls back on identity.

A fingerprint has up to three parts (``kernel_runtime.timeline.variables`` compares them):

``id``      where the object is. Forks keep addresses, a new process does not.
``sample``  a digest of what was looked at: the ends of a container, strides of an array.
``full``    a digest of all of the content; there only if all was looked at.

What this misses: a change in place further down than an object's own items or attributes, in
the middle of a container of more than 64 items (a list is also sampled at strides), between the
sampled windows of an array above 1 MB, or of single values of a polars frame; and an object that
is known by identity alone, was deleted, and whose address a new object of the same type got.
"""

from __future__ import annotations

import sys
import time
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final
from zlib import crc32

from kernel_runtime.executor import variable_libraries

BUDGET_S: Final = 0.002
VALUE_LENGTH: Final = 60
ITEMS_SHOWN: Final = 6
ITEMS_DIGESTED: Final = 64
SHORT_TEXT: Final = 1 << 12
WHOLE_TEXT: Final = 1 << 16
NESTING: Final = 4
HISTORY_NAMES: Final = frozenset(
    {"In", "Out", "_", "__", "___", "_i", "_ii", "_iii", "_ih", "_oh", "_dh", "_exit_code"}
)

_HEAP_TYPE: Final = 1 << 9
_name_of: Final = type.__dict__["__name__"].__get__
_mro_of: Final = type.__dict__["__mro__"].__get__
_members_of: Final = type.__dict__["__dict__"].__get__
_flags_of: Final = type.__dict__["__flags__"].__get__
_layout_of: Final = (
    type.__dict__["__basicsize__"].__get__,
    type.__dict__["__dictoffset__"].__get__,
)
_module_dict: Final = vars(types.ModuleType)["__dict__"].__get__


class _Plain:
    """An instance of it is laid out in memory as those of any class that is only Python."""


_PLAIN_LAYOUT: Final = tuple(read(_Plain) for read in _layout_of)


def summarize(
    user_ns: dict[str, Any],
    hidden: Container[str] = frozenset(),
    *,
    budget_s: float = BUDGET_S,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[str, Any]]:
    """Summaries of the variables of ``user_ns``: type, size, shape, value, fingerprint.

    ``hidden`` names what is not the user's; where it is a dict (IPython's ``user_ns_hidden``), a
    name that has been bound to something else is shown again. Sizes are bytes, the object's own
    and not of what it refers to. ``budget_s`` is in seconds.
    """
    deadline = clock() + budget_s
    look = _Look(lambda: clock() < deadline)
    out: dict[str, dict[str, Any]] = {}
    for name, value in shown(user_ns, hidden):
        try:
            summary = look.summary(value)
        except Exception:
            # Whatever this object did: the variable is there, and the others matter.
            summary = _summary(type(value), fingerprint={"id": id(value)})
        out[name if name.isascii() else _storable(name)] = summary
    return out


def shown(
    user_ns: dict[str, Any], hidden: Container[str] = frozenset()
) -> Iterator[tuple[str, Any]]:
    """The variables that are the user's, with their values; ``hidden`` as for `summarize`."""
    # A snapshot in one step: other threads of the user's go on changing the namespace.
    for name, value in list(dict.items(user_ns)):
        if type(name) is not str or (name[:1] in "_IO" and _is_history(name)):
            continue
        if name in hidden and (not isinstance(hidden, dict) or hidden[name] is value):
            continue
        yield name, value


def _is_history(name: str) -> bool:
    """Whether Python or IPython made it: ``__name__``, ``_``, ``_ih``, ``_i3``, ``_3``, ``In``."""
    if name in HISTORY_NAMES or (name.startswith("__") and name.endswith("__")):
        return True
    return name.startswith("_") and (name[1:].isdigit() or (name[1] == "i" and name[2:].isdigit()))


def _summary(
    kind: type,
    *,
    size: int | None = None,
    shape: str | None = None,
    value: str | None = None,
    fingerprint: dict[str, Any],
) -> dict[str, Any]:
    return {
        "type": _name_of(kind),
        "size": size,
        "shape": shape,
        "value": None if value is None else _storable(value),
        "fingerprint": fingerprint,
    }


def _storable(text: str) -> str:
    """``text`` with what UTF-8 cannot hold as escapes: half a surrogate pair in a file name."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


class _Look:
    """One pass over a namespace; ``in_time`` tells whether a costly digest may still be made."""

    def __init__(self, in_time: Callable[[], bool]) -> None:
        self.in_time = in_time
        self.libraries = variable_libraries.loaded(self.token)

    def summary(self, obj: Any) -> dict[str, Any]:
        """Describe one object by its exact type."""
        kind = type(obj)
        # By the id of the type: a hash of it could be a method of the user's metaclass.
        describe = _DESCRIBE.get(id(kind))
        if describe is not None:
            return describe(self, obj)
        from_library = self.libraries.get(id(kind))
        if from_library is not None:
            size, shape, value, fingerprint = from_library(obj, self.in_time())
            fingerprint["id"] = id(obj)
            return _summary(kind, size=size, shape=shape, value=value, fingerprint=fingerprint)
        return self._other(obj, kind)

    def token(self, obj: Any) -> str:
        """What is seen of an item or attribute: a short value itself, else where and how long.

        A token that begins with ``@`` says nothing of what lies deeper.
        """
        kind = type(obj)
        if kind is int and -_WIDE < obj < _WIDE:
            return f"i{obj}"
        if kind is str and len(obj) <= 64:
            return f"s{obj}"
        if kind is float or kind is bool or kind is complex or obj is None:
            return repr(obj)
        if kind is bytes and len(obj) <= 64:
            return repr(obj)
        length_of = _LENGTH.get(id(kind))
        if length_of is not None:
            return f"@{id(obj)}:{length_of(obj)}"
        from_library = self.libraries.get(id(kind))
        if from_library is not None:
            _, shape, _, fingerprint = from_library(obj, self.in_time())
            return f"@{id(obj)}:{shape}:{fingerprint.get('full', fingerprint.get('sample'))}"
        return f"@{id(obj)}"

    def number(self, obj: Any) -> dict[str, Any]:
        """int, float, complex, bool, None, range, Ellipsis."""
        kind = type(obj)
        if kind is int and not -_WIDE < obj < _WIDE:
            return self._wide_integer(obj)
        text = repr(obj)
        return {
            "type": _name_of(kind),
            "size": None,
            "shape": None,
            "value": text,
            "fingerprint": {"full": text},
        }

    def _wide_integer(self, obj: int) -> dict[str, Any]:
        # Writing it in decimal would take quadratic time.
        bits = obj.bit_length()
        fingerprint: dict[str, Any] = {"id": id(obj), "sample": f"{bits}:{obj & _WIDE - 1}"}
        if bits <= 8 * WHOLE_TEXT:
            data = obj.to_bytes(bits // 8 + 1, "little", signed=True)
            fingerprint["full"] = f"{bits}:{crc32(data)}"
        return _summary(int, size=sys.getsizeof(obj), value=f"{bits} bits", fingerprint=fingerprint)

    def text(self, obj: Any) -> dict[str, Any]:
        """str, bytes, bytearray."""
        length = len(obj)
        value = repr(bytes(obj[:VALUE_LENGTH]) if type(obj) is bytearray else obj[:VALUE_LENGTH])
        if length <= SHORT_TEXT:
            fingerprint: dict[str, Any] = {"full": f"{length}:{_digest(obj)}"}
        else:
            fingerprint = {"id": id(obj)}
            if self.in_time():
                parts = (obj[:2048], obj[-2048:], obj[:: length // 2048])
                fingerprint["sample"] = ":".join(str(_digest(part)) for part in parts)
                if length <= WHOLE_TEXT:
                    fingerprint["full"] = f"{length}:{_digest(obj)}"
        return {
            "type": _name_of(type(obj)),
            "size": sys.getsizeof(obj),
            "shape": f"length {length}",
            "value": value if length <= VALUE_LENGTH else f"{value}…",
            "fingerprint": fingerprint,
        }

    def container(self, obj: Any) -> dict[str, Any]:
        """list, tuple, dict, set, frozenset, deque, and the standard dicts."""
        kind = type(obj)
        length = _LENGTH[id(kind)](obj)
        fingerprint: dict[str, Any] = {"id": id(obj)}
        value = None
        if length <= ITEMS_SHOWN or self.in_time():
            tokens = [self.token(item) for item in _items(obj, kind, length)]
            is_whole = length <= ITEMS_DIGESTED and not any(token[0] == "@" for token in tokens)
            digest = f"{length}:{_digest(_JOIN(tokens))}"
            fingerprint["full" if is_whole else "sample"] = digest
            value = _preview(obj, kind, length)
        return {
            "type": _name_of(kind),
            "size": sys.getsizeof(obj),
            "shape": f"length {length}",
            "value": value,
            "fingerprint": fingerprint,
        }

    def module(self, obj: Any) -> dict[str, Any]:
        """An exact module: a lazy one is of a class of its own."""
        name = _module_dict(obj).get("__name__")
        value = name if type(name) is str else None
        return _summary(types.ModuleType, value=value, fingerprint={"id": id(obj)})

    def function(self, obj: Any) -> dict[str, Any]:
        """Told by its code, so that running the same definition again changes nothing."""
        code = obj.__code__
        cells = islice(obj.__closure__ or (), ITEMS_DIGESTED)
        tokens = list(self._code_tokens(code, NESTING))
        tokens += [self.token(item) for item in islice(obj.__defaults__ or (), ITEMS_DIGESTED)]
        tokens += [self.token(_cell_content(cell)) for cell in cells]
        digest = str(_digest(_JOIN(tokens)))
        is_whole = not any(token[0] == "@" for token in tokens)
        return _summary(
            types.FunctionType,
            value=f"{code.co_name}()",
            fingerprint={"full": digest} if is_whole else {"id": id(obj), "sample": digest},
        )

    def _code_tokens(self, code: types.CodeType, depth: int) -> Iterable[str]:
        yield f"c{crc32(code.co_code)}"
        yield from (f"n{name}" for name in (*code.co_names, *code.co_varnames, *code.co_freevars))
        for const in code.co_consts:
            if type(const) is types.CodeType and depth:
                yield from self._code_tokens(const, depth - 1)
            elif type(const) in (tuple, frozenset):
                yield from (self.token(item) for item in const)
            elif type(const) is str:
                yield f"t{_digest(const)}"
            else:
                yield self.token(const)

    def _other(self, obj: Any, kind: type) -> dict[str, Any]:
        fingerprint: dict[str, Any] = {"id": id(obj)}
        if issubclass(kind, type):
            members = [self.token(item) for item in islice(_members_of(obj).values(), 256)]
            fingerprint["sample"] = _digest(_JOIN(members))
            return _summary(kind, value=_name_of(obj), fingerprint=fingerprint)
        shape = None
        tokens = list(self._attributes(obj, kind))
        for base in _mro_of(kind):
            length_of = _LENGTH.get(id(base))
            if length_of is not None:
                length = length_of(obj)
                shape = f"length {length}"
                tokens += [self.token(item) for item in _items(obj, base, length)]
                break
        if tokens:
            fingerprint["sample"] = _digest(_JOIN(tokens))
        return _summary(kind, shape=shape, fingerprint=fingerprint)

    def _attributes(self, obj: Any, kind: type) -> Iterable[str]:
        """Of an instance: its slots, and its dictionary where no C code could answer for it."""
        for base in _mro_of(kind):
            members = _members_of(base)
            if "__slots__" in members:
                slots = [m for m in members.values() if type(m) is types.MemberDescriptorType]
                yield from (self.token(_slot_content(slot, obj)) for slot in slots)
            own_dict = members.get("__dict__")
            if own_dict is None:
                continue
            layout = tuple(read(kind) for read in _layout_of)
            if type(own_dict) is not types.GetSetDescriptorType or layout != _PLAIN_LAYOUT:
                return
            attributes = own_dict.__get__(obj)
            yield from map(self.token, _items(attributes, dict, dict.__len__(attributes)))
            for value in islice(dict.values(attributes), ITEMS_DIGESTED):
                # one step further: frameworks keep their parts in dicts
                if type(value) in (dict, OrderedDict):
                    yield from map(self.token, _items(value, dict, dict.__len__(value)))


def _slot_content(slot: Any, obj: Any) -> Any:
    try:
        return slot.__get__(obj)
    except AttributeError:  # the slot is empty
        return None


def _cell_content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable is not bound yet
        return None


def _digest(data: Any) -> int:
    return crc32(data.encode("utf-8", "surrogatepass") if type(data) is str else data)


def _items(obj: Any, base: Any, length: int) -> list[Any]:
    """All items up to 64 (of a dict: keys and values), else a sample that has both ends.

    ``base`` is the built-in type whose own methods are used, whatever a subclass made of them.
    """
    if base is list or base is tuple:
        if length <= ITEMS_DIGESTED:
            return list(base.__getitem__(obj, slice(None)))
        return [
            *base.__getitem__(obj, slice(None, None, length // ITEMS_DIGESTED + 1)),
            *base.__getitem__(obj, slice(-4, None)),
        ]
    if issubclass(base, dict):
        view = dict.items(obj)
        if length <= ITEMS_DIGESTED:
            return list(chain.from_iterable(view))
        ends = (islice(view, ITEMS_DIGESTED // 2), islice(reversed(view), ITEMS_DIGESTED // 2))
        return [part for end in ends for part in chain.from_iterable(end)]
    iterator = base.__iter__(obj)
    if base is deque and length > ITEMS_DIGESTED:
        return [*islice(iterator, 32), *islice(deque.__reversed__(obj), 32)]
    return list(islice(iterator, ITEMS_DIGESTED))


def _preview(obj: Any, kind: Any, length: int) -> str:
    """The first items, written if they are plain values, else by the names of their types."""
    if kind is list or kind is tuple:
        shown = [_short(item) for item in obj[:ITEMS_SHOWN]]
    elif issubclass(kind, dict):
        pairs = list(islice(dict.items(obj), ITEMS_SHOWN))
        shown = [f"{_short(key)}: {_short(value)}" for key, value in pairs]
    else:
        shown = [_short(item) for item in islice(kind.__iter__(obj), ITEMS_SHOWN)]
    if length > len(shown):
        shown.append("…")
    inner = ", ".join(shown)
    if len(inner) > VALUE_LENGTH:
        inner = inner[: VALUE_LENGTH - 1] + "…"
    opening, closing = _BRACKETS.get(kind.__name__, ("{", "}"))
    return f"{opening}{inner}{closing}"


def _short(item: Any) -> str:
    kind = type(item)
    if kind is str:
        return repr(item if len(item) <= 20 else item[:19] + "…")
    if kind is float or kind is bool or item is None or (kind is int and -_WIDE < item < _WIDE):
        return repr(item)
    return str(_name_of(kind))


_WIDE: Final = 1 << 256
_JOIN: Final = "\0".join
_BRACKETS: Final = {"list": ("[", "]"), "deque": ("[", "]"), "tuple": ("(", ")")}
_LENGTH: Final[dict[int, Callable[[Any], int]]] = {
    id(kind): kind.__len__
    for kind in (list, tuple, dict, set, frozenset, deque, OrderedDict, defaultdict, Counter)
}
_DESCRIBE: Final[dict[int, Callable[[_Look, Any], dict[str, Any]]]] = {
    **dict.fromkeys(
        map(id, (int, float, complex, bool, range, type(None), type(...))), _Look.number
    ),
    **dict.fromkeys(map(id, (str, bytes, bytearray)), _Look.text),
    **dict.fromkeys(_LENGTH, _Look.container),
    id(types.ModuleType): _Look.module,
    id(types.FunctionType): _Look.function,
}
