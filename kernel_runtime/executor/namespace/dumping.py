"""Write the namespace to a sink, in units that come back apart.

Each variable is first pickled alone. Where that walk meets an object of an earlier variable it goes
no further: the two share it. So every object is seen once, what cannot be pickled is found out
variable by variable, and one that shares nothing is pickled already. Then those that share are
pickled together.
"""

from __future__ import annotations

import platform
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, Final

from kernel_runtime.executor.namespace import (
    ipython,
    main_thread,
    own_modules,
    places,
    registry,
    settings,
    sources,
    units,
)
from kernel_runtime.executor.namespace.pickler import Keeper, Placements, UnitPickler
from kernel_runtime.executor.namespace.registry import NotKept
from kernel_runtime.executor.namespace.session import SessionState, Sink
from kernel_runtime.executor.namespace.streams import (
    Cut,
    Recording,
    StreamWriter,
    Uploader,
    cut_by_content,
)
from kernel_runtime.executor.namespace.units import Root

VERSION: Final = 1
STACKS: Final = (512 << 20, 128 << 20, 32 << 20)
"""Sizes to try for the stack, in bytes: address space may be limited."""
STACK_OF_ONE: Final = 5 << 10
"""More than one level of pickling, or of Python code called from it, takes of the stack."""
_ONE_RECORDING: Final = 32 << 20
_ALL_RECORDINGS: Final = 256 << 20
_SMALL_TEXT: Final = 16 << 10
_ATOMS: Final = (type(None), bool, int, float, complex, str, bytes)
_WELL_KNOWN: Final = frozenset(
    {
        *("builtins", "collections", "datetime", "decimal", "fractions", "pathlib", "uuid"),
        *("zoneinfo", "enum", "re", "random", "itertools", "copyreg"),
        *("numpy", "pandas", "pyarrow"),
        "kernel_runtime",  # what puts together again what we took apart
    }
)


def _nobody(names: Sequence[str]) -> None:
    pass


def dump(
    session: SessionState,
    sink: Sink,
    *,
    cut: Cut = cut_by_content,
    trying: Callable[[Sequence[str]], None] = _nobody,
) -> dict[str, Any]:
    """Write everything to ``sink``; the manifest (docs/namespace.md). Raises what the sink raises.

    trying: is told the names that are pickled next, so that who watches knows what has ended the
    process if something does.

    Runs in a copy of the process that ends afterwards: it raises the recursion limit, reducers take
    objects apart, and the caller has switched the garbage collector off. The work is done in a
    thread with a stack of its own; the calling one answers what only it can.
    """
    dumping = _Dump(session, sink, cut, trying)
    result: list[Any] = []

    def work() -> None:
        # what the session has set by threading.settrace is about its own threads; a list in which
        # it notes calls would grow for as long as it is pickled
        sys.settrace(None)
        sys.setprofile(None)
        try:
            result.append(dumping.run())
        except BaseException as error:
            result.append(error)

    limit = sys.getrecursionlimit()
    stack = threading.stack_size()
    try:
        for size in STACKS:
            threading.stack_size(size)
            sys.setrecursionlimit(size // STACK_OF_ONE)
            try:
                main_thread.serve(threading.Thread(target=work))
                break
            except RuntimeError:
                if size == STACKS[-1]:
                    raise
    finally:
        threading.stack_size(stack)
        sys.setrecursionlimit(limit)
    if isinstance(result[0], BaseException):
        raise result[0]
    manifest: dict[str, Any] = result[0]
    return manifest


@dataclass
class _Attempt:
    """One pickled payload: where its pieces are, and what was seen on the way."""

    recording: Recording | None
    pickler: UnitPickler
    stream: list[Any] = field(default_factory=list)


class _Failed(Exception):
    """Pickling failed, with a reason for the user, and the object that it failed at."""

    def __init__(self, reason: str, culprit: Any) -> None:
        super().__init__(reason)
        self.reason = reason
        self.culprit = culprit


class _Dump:
    def __init__(
        self,
        session: SessionState,
        sink: Sink,
        cut: Cut,
        trying: Callable[[Sequence[str]], None],
    ) -> None:
        self.session = session
        self.cut = cut
        self.trying = trying
        self.uploader = Uploader(sink)
        # Before the recursion limit is changed: it is one of the settings.
        self.settings, self.notices = settings.groups(session)
        self.keeper = Keeper(session)
        self.recorded = 0
        self.modules: set[str] = set()
        self.lost: list[list[str]] = []
        self.lost_outputs: list[list[str]] = []

    def run(self) -> dict[str, Any]:
        variables, state = ipython.split(self.session, self.keeper)
        roots, state["imports"] = self._roots(variables)
        for number, root in enumerate(self._growing(roots)):
            self._alone(number, root)
        units.lose_dependents(roots)
        manifest_units: list[dict[str, Any]] = []
        unit_of: dict[str, int] = {}
        for numbers in units.group(roots):
            self._unit([roots[number] for number in numbers], manifest_units, unit_of)
        self._sources(manifest_units)
        self.uploader.flush()
        for root in roots:
            self._tell(root)
        state["lost_outputs"] = self.lost_outputs
        state["order"] = [name for name, _ in variables]
        state["own_sources"] = own_modules.sources(self.session.frozen_at)
        return {
            "version": VERSION,
            "python": platform.python_version(),
            "implementation": sys.implementation.name,
            "machine": platform.machine(),
            "hash_seed": self.session.hash_seed,
            "modules": self._versions(state["imports"]),
            "units": manifest_units,
            "lost": self.lost,
            "notices": self.notices,
            "state": state,
        }

    # -- what there is ----------------------------------------------------------------------

    def _roots(self, variables: list[tuple[str, Any]]) -> tuple[list[Root], list[Any]]:
        atoms: list[tuple[str, Any]] = []
        imports: list[Any] = []
        roots: list[Root] = []
        by_class: dict[str, Root] = {}
        for name, value in variables:
            kind = type(value)
            if _is_atom(value):
                atoms.append((name, value))
                continue
            place = sources.importable(value, self.keeper)
            if place is not None:
                imports.append([name, *place])
                continue
            key = self.keeper.class_key(value) if issubclass(kind, type) else ""
            if key in by_class:
                by_class[key].values.append((name, value))
                continue
            root = Root("variables", [(name, value)])
            if key:
                root.key, root.cls, root.kind = key, value, "definitions"
                by_class[key] = root
            roots.append(root)
        if atoms:
            roots.append(Root("variables", atoms))
        for number, value in self.session.outputs.items():
            roots.append(Root("outputs", [(f"Out[{number}]", value)]))
        roots.append(Root("outputs", [("In", list(self.session.inputs))]))
        roots += [Root("settings", [(f"settings:{k}", v)]) for k, v in self.settings.items()]
        data = own_modules.data().items()
        roots += [Root("module", [(f"module:{k}", v)]) for k, v in data if not _is_atom(v)]
        atoms = [(f"module:{name}", value) for name, value in data if _is_atom(value)]
        return roots + ([Root("module", atoms)] if atoms else []), imports

    def _growing(self, roots: list[Root]) -> Any:
        """The roots, and after them the classes that turn up on the way, and so on."""
        number = 0
        while True:
            if number == len(roots):
                rooted = {root.key for root in roots}
                news = [key for key in self.keeper.classes if key not in rooted]
                wanted = {key for root in roots for key in root.needs}
                roots += [
                    Root("definitions", [], key=key, cls=self.keeper.classes[key])
                    for key in news
                    if key in wanted
                ]
                if number == len(roots):
                    return
            yield roots[number]
            number += 1

    # -- pickling ---------------------------------------------------------------------------

    def _alone(self, number: int, root: Root) -> None:
        root.reason = next(filter(None, map(self.session.left_out.get, root.names)), None)
        if root.reason is not None:
            return
        self.trying(root.names)
        recording = Recording(min(_ONE_RECORDING, _ALL_RECORDINGS - self.recorded))
        pickler = UnitPickler(self.keeper, recording, dict(root.classes), number, root.notices)
        try:
            self._pickle(pickler, (root.classes, tuple(root.values), Placements()))
        except _Failed as failed:
            root.reason = self._in_words(root, failed)
            return
        root.needs, root.shares = pickler.needs, pickler.shares
        root.attempt = _Attempt(recording, pickler)
        self.recorded += recording.size if recording.data is not None else 0
        self.keeper.own((obj for _, obj in pickler.memo.copy().values()), number)
        pickler.clear_memo()

    def _pickle(self, pickler: UnitPickler, payload: Any) -> None:
        try:
            pickler.dump(payload)
        except RecursionError:
            raise _Failed("it is nested too deeply to be kept", None) from None
        except MemoryError:
            raise _Failed("there is not enough memory to write it", None) from None
        except NotKept as error:
            raise _Failed(error.reason, pickler.culprit) from None
        except BaseException as error:
            reason = f"it cannot be pickled: {type(error).__name__}: {error}"
            raise _Failed(reason, pickler.culprit) from None

    def _in_words(self, root: Root, failed: _Failed) -> str:
        if failed.culprit is not None:
            for name, value in root.values:
                path = places.path_to(failed.culprit, name, value)
                if path:
                    return f"{path}: {failed.reason}"
        return failed.reason

    def _unit(
        self, members: list[Root], manifest_units: list[dict[str, Any]], unit_of: dict[str, int]
    ) -> None:
        own = {root.key for root in members if root.key is not None}
        attempt: _Attempt = members[0].attempt
        if len(members) > 1 or attempt.recording is None or attempt.recording.data is None:
            try:
                attempt = self._together(members, own)
            except _Failed as failed:
                self._lose(members, failed.reason)
                return
        else:
            writer = StreamWriter(self.uploader, self.cut)
            writer.write(attempt.recording.data)
            attempt.stream = writer.finish()
        pickler = attempt.pickler
        missing = sorted(key for key in pickler.needs if key not in unit_of)
        if missing:
            self._lose(members, units.because_of_class(missing[0], "see there"))
            return
        memory = [*pickler.memory, *(buffer.raw() for buffer in pickler.plain)]
        older = self._older([name for root in members for name in root.names])
        buffers = [self.uploader.add_memory(part, before) for part, before in zip(memory, older)]
        number = len(manifest_units)
        unit_of.update(dict.fromkeys(own, number))
        kinds = {root.kind for root in members}
        kind = next(k for k in _KINDS if k in kinds)
        if kind == "variables" and all(map(_is_definition, (v for r in members for v in r.values))):
            kind = "definitions"
        manifest_units.append(
            {
                "id": number,
                "names": [name for root in members for name, _ in root.values],
                "kind": kind,
                "needs": sorted({unit_of[key] for key in pickler.needs}),
                "defines": sorted(own),
                "stream": attempt.stream,
                "buffers": buffers,
                "plain_buffers": len(pickler.plain),
                "bytes": sum(size for part in (attempt.stream, *buffers) for _, size in part),
                "try": bool(own) or not _loads_well(pickler),
                "code": not pickler.kinds.isdisjoint(_OF_CODE),
            }
        )
        self.modules |= pickler.modules
        self.modules |= {kind.__module__ for kind in pickler.kinds}
        for root in members:
            root.attempt = None

    def _older(self, names: Sequence[str]) -> Iterator[Sequence[str]]:
        """The pieces of each buffer that these had before, as far as there is anything to say."""
        known = next(filter(None, map(self.session.older.get, names)), ())
        return chain(known, repeat(()))

    def _together(self, members: list[Root], own: set[str]) -> _Attempt:
        self.trying([name for root in members for name in root.names])
        writer = StreamWriter(self.uploader, self.cut)
        pickler = UnitPickler(self.keeper, writer, own, None, None)
        classes = tuple(pair for root in members for pair in root.classes)
        values = tuple(pair for root in members for pair in root.values)
        self._pickle(pickler, (classes, values, Placements()))
        stream = writer.finish()
        pickler.clear_memo()
        return _Attempt(None, pickler, stream)

    def _lose(self, members: list[Root], reason: str) -> None:
        for root in members:
            root.reason = reason

    # -- what is said of it -----------------------------------------------------------------

    def _sources(self, manifest_units: list[dict[str, Any]]) -> None:
        found = sources.wanted(self.keeper.sources, self.session.shell)
        root = Root("settings", [(sources.NAME, found)])
        self._alone(-1, root)
        self._unit([root], manifest_units, {})

    def _tell(self, root: Root) -> None:
        for name, _ in root.values:
            is_settings = name.startswith(("settings:", "module:"))
            if root.reason is not None:
                if root.kind == "outputs":
                    self.lost_outputs.append([name, root.reason])
                elif is_settings:
                    self.notices.append([name, f"not kept: {root.reason}"])
                else:
                    self.lost.append([name, root.reason])
            else:
                self.notices += [[name, text] for text in root.notices]

    def _versions(self, imports: list[Any]) -> dict[str, str]:
        tops = {str(name).split(".")[0] for name in (*self.modules, *(i[1] for i in imports))}
        found = {top: getattr(sys.modules.get(top), "__version__", None) for top in sorted(tops)}
        return {top: version for top, version in found.items() if type(version) is str}


_KINDS: Final = ("variables", "definitions", "module", "settings", "outputs")


_OF_CODE: Final = frozenset({types.FunctionType, types.CodeType})


def _is_atom(value: Any) -> bool:
    """Whether its loading can only go well, and it is small."""
    kind = type(value)
    if kind in _ATOMS:
        return kind not in (str, bytes) or len(value) <= _SMALL_TEXT
    generic = getattr(sys.modules.get("numpy"), "generic", ())
    if kind.__module__ != "numpy" or not isinstance(value, generic):
        return False
    return value.dtype.kind in "biufcmMSU" and value.nbytes <= _SMALL_TEXT


def _is_definition(pair: tuple[str, Any]) -> bool:
    return issubclass(type(pair[1]), (type, types.FunctionType))


def _loads_well(pickler: UnitPickler) -> bool:
    """Whether a unit is made of what is known to come back, and of nothing else."""
    if pickler.is_doubtful:
        return False
    names = [*pickler.modules]
    for kind in pickler.kinds:
        if kind is types.FunctionType:  # one that was written, not one that goes by its name
            return False
        names.append(registry.name_of(kind))
    return all(name.split(".")[0] in _WELL_KNOWN for name in names)
