"""What the commands of docs/protocol.md answer, as typed values.

Records are values of the moment in which they came. Dictionaries of the protocol that are only
handed on (configuration, memory, engines) stay dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from kernel_runtime.timeline.model import Checkpoint, from_record

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Record(Checkpoint):
    """A checkpoint as a client sees it. ``variables`` is filled by ``get`` only."""

    is_head: bool = False
    ancestors: Callable[[], tuple[str, ...]] = field(default=tuple, repr=False, compare=False)

    @property
    def history(self) -> tuple[str, ...]:
        """Ids of the ancestors, oldest first. For a record from an event this asks the kernel."""
        return self.ancestors()


@dataclass(frozen=True)
class Variable:
    """A variable and what is told of it; ``size`` is the object's own, in bytes."""

    name: str
    type: str | None
    size: int | None
    shape: str | None
    value: str | None


@dataclass(frozen=True)
class VariableChange:
    """A variable before and after."""

    name: str
    before: Variable
    after: Variable


@dataclass(frozen=True)
class FileChange:
    """A file of the workspace that differs. A path that is not UTF-8 has ``\\xNN`` escapes."""

    path: str
    root: str
    kind: str
    size_before: int | None
    size_after: int | None


@dataclass(frozen=True)
class Differences:
    """What differs between two states."""

    added: tuple[Variable, ...]
    removed: tuple[Variable, ...]
    changed: tuple[VariableChange, ...]
    files: tuple[FileChange, ...]

    @property
    def is_empty(self) -> bool:
        """Whether nothing differs that the checkpoints know of."""
        return not (self.added or self.removed or self.changed or self.files)


@dataclass(frozen=True)
class RestoreResult:
    """What a restore did, or with ``dry_run`` would do. ``text`` tells it in words."""

    checkpoint: Record
    safety: Record | None
    dry_run: bool
    differences: Differences
    kept_aside: tuple[Any, ...]
    threads: Mapping[str, Any]
    warnings: tuple[str, ...]
    took_ms: float
    text: str


@dataclass(frozen=True)
class Status:
    """Where the session stands; docs/protocol.md says what is in each part."""

    timeline: str
    head: Record | None
    busy: bool
    config: Mapping[str, Any]
    memory: Mapping[str, Any]
    engines: Mapping[str, Any]
    workspace: tuple[str, ...]
    limits: tuple[str, ...]
    counts: Mapping[str, Any]
    last_cow_tax_ms: float | None


@dataclass(frozen=True)
class Event:
    """Something that happened to the timeline.

    ``missed`` counts the events that were lost just before this one; ``content`` is all of it.
    """

    name: str
    sequence: int
    missed: int
    content: Mapping[str, Any]
    checkpoint: Record | None


def read_record(data: Result, ancestors: Callable[[], tuple[str, ...]] | None = None) -> Record:
    """A record with its history, or with a way to find it. Raises BadRequest if it is none."""
    checkpoint = from_record(data)
    if "history" in data:
        line = tuple(data["history"])
        ancestors = lambda: line  # noqa: E731
    known = {f.name: getattr(checkpoint, f.name) for f in fields(Checkpoint)}
    return Record(**known, is_head=bool(data.get("is_head")), ancestors=ancestors or tuple)


def read_checkpoint(result: Result) -> Record:
    """The answer of ``checkpoint``, ``label`` and ``pin``."""
    return read_record(result["checkpoint"])


def read_list(result: Result) -> list[Record]:
    """The answer of ``list``: each history follows from the parents that came with it."""
    parents: Mapping[str, str | None] = result["parents"]

    def line(id: str) -> tuple[str, ...]:
        found = []
        parent = parents.get(id)
        while parent is not None:
            found.append(parent)
            parent = parents.get(parent)
        return tuple(reversed(found))

    return [
        read_record(data, lambda id=data["id"]: line(id))  # type: ignore[misc]
        for data in result["checkpoints"]
    ]


def read_get(result: Result) -> Record:
    """The answer of ``get``: the record with its variables."""
    record = read_record(result["checkpoint"])
    known = {f.name: getattr(record, f.name) for f in fields(Record)}
    return Record(**{**known, "variables": dict(result["variables"])})


def _variable(data: Result, name: str | None = None) -> Variable:
    return Variable(
        name=data["name"] if name is None else name,
        type=data.get("type"),
        size=data.get("size"),
        shape=data.get("shape"),
        value=data.get("value"),
    )


def read_differences(result: Result) -> Differences:
    """The answer of ``diff``, and the same part of a restore's."""
    variables = result["variables"]
    return Differences(
        added=tuple(map(_variable, variables["added"])),
        removed=tuple(map(_variable, variables["removed"])),
        changed=tuple(
            VariableChange(
                item["name"],
                _variable(item["before"], item["name"]),
                _variable(item["after"], item["name"]),
            )
            for item in variables["changed"]
        ),
        files=tuple(
            FileChange(
                path=change["path"],
                root=change["root"],
                kind=change["kind"],
                size_before=change.get("size_before"),
                size_after=change.get("size_after"),
            )
            for change in result["files"]
        ),
    )


def read_restore(result: Result) -> RestoreResult:
    """The answer of ``restore``."""
    safety = result["safety"]
    return RestoreResult(
        checkpoint=read_record(result["checkpoint"]),
        safety=None if safety is None else read_record(safety),
        dry_run=bool(result["dry_run"]),
        differences=read_differences(result),
        kept_aside=tuple(result["kept_aside"]),
        threads=result["threads"],
        warnings=tuple(result["warnings"]),
        took_ms=float(result["took_ms"]),
        text=result["text"],
    )


def read_status(result: Result) -> Status:
    """The answer of ``status``."""
    head = result["head"]
    return Status(
        timeline=result["timeline"],
        head=None if head is None else read_record(head),
        busy=bool(result["busy"]),
        config=result["config"],
        memory=result["memory"],
        engines=result["engines"],
        workspace=tuple(result["workspace"]),
        limits=tuple(result["limits"]),
        counts=result["counts"],
        last_cow_tax_ms=result.get("last_cow_tax_ms"),
    )
