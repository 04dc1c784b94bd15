"""Bring a namespace back from a source into a fresh process, unit by unit."""

from __future__ import annotations

import gc
import importlib
import pickle
import sys
from collections.abc import Collection
from typing import Any, Final

from kernel_runtime.executor.namespace import code, ipython, own_modules, sets, settings, sources
from kernel_runtime.executor.namespace.registry import NotKept
from kernel_runtime.executor.namespace.session import Loaded, SessionState, Source
from kernel_runtime.executor.namespace.streams import Piece, StreamReader

_SETTINGS: Final = "settings:"
_MODULE: Final = "module:"


class StoredBlock:
    """Memory that is stored apart from the stream: what ``Context.block`` was given."""

    def __init__(self, pieces: list[Piece], source: Source) -> None:
        self._pieces = pieces
        self._source = source
        self.nbytes = sum(int(size) for _, size in pieces)

    def read_into(self, target: memoryview) -> None:
        """Fill writable memory of ``nbytes`` bytes."""
        view = target.cast("B") if target.format != "B" or target.ndim != 1 else target
        place = 0
        for digest, size in self._pieces:
            self._source.get_into(str(digest), view[place : place + int(size)])
            place += int(size)


def load(
    manifest: dict[str, Any],
    source: Source,
    session: SessionState,
    *,
    names: Collection[str] | None = None,
) -> Loaded:
    """Load what a dump has written. One unit that cannot be loaded costs only itself.

    With ``names``, only these variables, and what they need, are loaded and put into the namespace;
    settings and outputs stay as they are. Names that the manifest does not have are lost.
    """
    loading = _Load(manifest, source, session)
    was_enabled = gc.isenabled()
    gc.disable()  # a million new objects would be looked at again and again
    try:
        if names is None:
            loading.everything()
        else:
            loading.some(names)
        code.finish_classes()
    finally:
        if was_enabled:
            gc.enable()
    return loading.loaded


class _Unpickler(pickle.Unpickler):
    def __init__(self, loading: _Load, unit: dict[str, Any], buffers: list[Any]) -> None:
        super().__init__(StreamReader(unit["stream"], loading.source), buffers=buffers)
        self._loading = loading
        self._unit = unit

    def persistent_load(self, pid: Any) -> Any:
        """What stands for itself in every process."""
        return self._loading.resolve(pid, self._unit)

    def find_class(self, module: str, name: str) -> Any:
        """A global by its name; one of the session's may have to be loaded first."""
        if module == "__main__":
            self._loading.load_name(name.split(".")[0])
        self._loading.uses(self._unit, module)
        return super().find_class(module, name)


class _Load:
    def __init__(self, manifest: dict[str, Any], source: Source, session: SessionState) -> None:
        self.manifest = manifest
        self.source = source
        self.session = session
        self.loaded = Loaded(notices=[list(notice) for notice in manifest["notices"]])
        self.units: list[dict[str, Any]] = manifest["units"]
        self.classes: dict[str, Any] = {}
        self.settings: dict[str, Any] = {}
        self.outputs: dict[int, Any] = {}
        self.inputs: list[str] | None = None
        self.wanted: Collection[str] | None = None
        self._failed: dict[int, str] = {}
        self._python = str(manifest.get("python", ""))
        self._untried: set[int] = set()
        self._modules_of: dict[int, set[str]] = {}
        self._changed_sources = own_modules.changed_sources(manifest["state"]["own_sources"])
        self._edited = {name for name, _ in self._changed_sources}
        self._done: set[int] = set()
        self._unit_of = {
            name: unit["id"]
            for unit in self.units
            for name in unit["names"]
            if unit["kind"] in ("variables", "definitions")
        }

    # -- what is asked for ------------------------------------------------------------------

    def everything(self) -> None:
        """All of it: settings that variables need, definitions, variables, the rest."""
        self.loaded.lost = [list(pair) for pair in self.manifest["lost"]]
        state = self.manifest["state"]
        self._early()
        self.loaded.notices += self._changed_sources
        self._imports(state["imports"])
        for kind in ("definitions", "module", "variables", "outputs", "settings"):
            for unit in self.units:
                if unit["kind"] == kind and not _is_carried(unit):
                    self._load(unit["id"])
        for unit in filter(_is_carried, self.units):  # last: a class that is here comes first
            self._load(unit["id"])
        if self.inputs is not None:
            ipython.put_inputs(self.session, self.inputs, state["input_names"])
        ipython.put_outputs(self.session, self.outputs, state)
        self.session.execution_count = state["execution_count"]
        code.finish_classes()
        self._apply(list(self.settings))
        for name in state["order"]:
            if name in self.session.namespace:
                self.session.namespace[name] = self.session.namespace.pop(name)

    def some(self, names: Collection[str]) -> None:
        """These variables only."""
        self.wanted = set(names)
        self.loaded.notices = [pair for pair in self.loaded.notices if pair[0] in self.wanted]
        if self.session.is_trial:
            self._early()  # modules of the session's own are found by its path
        imports = [entry for entry in self.manifest["state"]["imports"] if entry[0] in self.wanted]
        self._imports(imports)
        lost = dict(self.manifest["lost"])
        for name in names:
            if name in self._unit_of:
                self._load(self._unit_of[name])
            elif name not in {entry[0] for entry in imports}:
                reason = lost.get(name, "there is no variable of this name in the checkpoint")
                self.loaded.lost.append([name, reason])

    # -- units ------------------------------------------------------------------------------

    def _early(self) -> None:
        """What variables may need."""
        for unit in self.units:
            if self._is_early(unit):
                self._load(unit["id"])
        self._apply([name for name in self.settings if settings.is_early(name)])

    def _is_early(self, unit: dict[str, Any]) -> bool:
        names = [name.removeprefix(_SETTINGS) for name in unit["names"]]
        is_source = unit["names"] == [sources.NAME]
        return unit["kind"] == "settings" and (is_source or all(map(settings.is_early, names)))

    def _load(self, number: int) -> str | None:
        """Load a unit that was not yet, after what it needs; the reason if it cannot be."""
        if number in self._done:
            return self._failed.get(number)
        self._done.add(number)
        unit = self.units[number]
        reason = next(filter(None, map(self._load, unit["needs"])), None)
        other = _other_python(str(unit.get("python", self._python))) if unit.get("code") else ""
        if reason is None and other:
            reason = other  # nothing of it is unpickled
        elif reason is not None:
            reason = f"what it is made of cannot be loaded: {reason}"
            if self._untried.intersection(unit["needs"]):
                self._untried.add(number)
        else:
            try:
                self._read(unit)
            except code.OtherPython as error:
                reason = str(error)
            except NotKept as error:  # by a file that it needs
                reason = error.reason
                if self.session.is_trial:
                    self._untried.add(number)
            except (Exception, SystemExit) as error:
                reason = f"it cannot be loaded: {type(error).__name__}: {error}"
                if self.session.is_trial and self._is_by_files(number, error):
                    self._untried.add(number)
        if reason is not None:
            self._failed[number] = reason
            self._report(unit, reason)
        return reason

    def _is_by_files(self, number: int, error: BaseException) -> bool:
        """Whether it fails by files, which are the checkpoint's when it is restored."""
        if self._edited.intersection(self._modules_of.get(number, ())):
            return True
        step: BaseException | None = error
        while step is not None and not isinstance(step, OSError):
            step = step.__cause__ or step.__context__
        return step is not None

    def _report(self, unit: dict[str, Any], reason: str) -> None:
        if unit["id"] in self._untried:
            self.loaded.untried += unit["names"]
            return
        for name in unit["names"]:
            if name.startswith((_SETTINGS, _MODULE)):
                self.loaded.notices.append([name, reason])
            elif unit["kind"] != "outputs" and (self.wanted is None or name in self.wanted):
                self.loaded.lost.append([name, reason])

    def _read(self, unit: dict[str, Any]) -> None:
        first_plain = len(unit["buffers"]) - unit["plain_buffers"]
        plain = []
        for pieces in unit["buffers"][first_plain:]:
            stored = StoredBlock(pieces, self.source)
            buffer = bytearray(stored.nbytes)
            stored.read_into(memoryview(buffer))
            plain.append(buffer)
        classes, values, placements = _Unpickler(self, unit, plain).load()
        for placement in placements:
            sets.place(*placement)
        if _is_carried(unit):
            classes = {key: cls for key, cls in dict(classes).items() if key not in self.classes}
            values = [(name, value) for name, value in values if name in unit["names"]]
        self.classes.update(classes)
        for name, value in values:
            if name == sources.NAME:
                sources.put_back(value, self.session.shell)
            elif name.startswith(_SETTINGS):
                self.settings[name.removeprefix(_SETTINGS)] = value
            elif name.startswith(_MODULE):
                own_modules.set_data(name.removeprefix(_MODULE), value)
            elif name.startswith("Out["):
                self.outputs[int(name[4:-1])] = value
            elif name == "In" and unit["kind"] == "outputs":
                self.inputs = value
            elif self.wanted is None or name in self.wanted:
                self.session.namespace[name] = value
                self.loaded.names.append(name)

    def load_name(self, name: str) -> None:
        """See that a variable is in the namespace, if it is still to come."""
        if name in self._unit_of:
            self._load(self._unit_of[name])

    def uses(self, unit: dict[str, Any], module: str) -> None:
        """Note that a unit needs a module."""
        self._modules_of.setdefault(unit["id"], set()).add(module)

    def resolve(self, pid: Any, unit: dict[str, Any]) -> Any:
        """The object that a persistent id stands for."""
        kind = pid[0]
        if kind == "n":
            return self.session.namespace
        if kind == "c":
            return self.classes[pid[1]]
        if kind == "b":
            return StoredBlock(unit["buffers"][pid[1]], self.source)
        if kind in "mdr":
            self.uses(unit, pid[1].partition(":")[0])
        if kind == "m":
            return importlib.import_module(pid[1])
        if kind == "d":
            return importlib.import_module(pid[1]).__dict__
        if kind == "r":
            module, _, path = pid[1].partition(":")
            return _attribute(importlib.import_module(module), path)
        if kind == "s":
            return getattr(self.session.shell, pid[1]) if pid[1] else self.session.shell
        return {"O": self.session.outputs, "I": self.session.inputs}[kind]

    # -- names ------------------------------------------------------------------------------

    def _imports(self, imports: list[list[str]]) -> None:
        for name, module, *path in imports:
            try:
                value: Any = importlib.import_module(module)
                if path:
                    value = _attribute(value, path[0])
            except Exception as error:
                reason = f"it cannot be imported from {module}: {type(error).__name__}: {error}"
                self.loaded.lost.append([name, reason])
                continue
            self.session.namespace[name] = value
            self.loaded.names.append(name)

    def _apply(self, names: list[str]) -> None:
        for name in sorted(names, key=settings.order):
            self.loaded.notices += settings.apply(name, self.settings.pop(name), self.session)


def _is_carried(unit: dict[str, Any]) -> bool:
    """Whether it is another manifest's, whose process had what this one's could not load
    (engines/dill/carrying.py): of its names only those that are listed are wanted."""
    return "python" in unit


def _other_python(made_by: str) -> str:
    """Why code of that version cannot be loaded here; empty if it can: pickle has no word for it,
    and what another minor version compiled may end the process when it is called."""
    theirs = ".".join(made_by.split(".")[:2])
    ours = ".".join(map(str, sys.version_info[:2]))
    if not made_by or theirs == ours:
        return ""
    return (
        f"its code was compiled by Python {theirs} and this is Python {ours}; a kernel of Python "
        f"{theirs} loads it"
    )


def _attribute(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = getattr(value, part)
    return value
