"""What the commands of docs/protocol.md answer, as typed values.

Records are values of the moment in which they came. Dictionaries of the protocol that are only
handed on (configuration, memory, engines) stay dictionaries.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from kernel_runtime.timeline.model import Checkpoint, from_record

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Record(Checkpoint):
    """A checkpoint as a client sees it. ``variables`` is filled by ``get`` only."""

    is_head: bool = False
    effects: int = 0
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
    """A file that differs, ``path`` below ``root``. What is not UTF-8 has ``\\xNN`` escapes."""

    path: str
    root: str
    kind: str
    size_before: int | None
    size_after: int | None


@dataclass(frozen=True)
class PackageChange:
    """A package that differs; ``before`` or ``after`` is None where it is not installed.

    ``manager``: pip, conda or dpkg. ``where``: the directory that it is in, if that is told.
    """

    manager: str
    name: str
    before: str | None
    after: str | None
    where: str


@dataclass(frozen=True)
class EnvironmentVariable:
    """An environment variable that differs; None where it is not set. Secrets are not shown."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Differences:
    """What differs between two states.

    ``environment``: files outside of the workspace, all of them if ``environment_complete``.
    """

    added: tuple[Variable, ...]
    removed: tuple[Variable, ...]
    changed: tuple[VariableChange, ...]
    files: tuple[FileChange, ...]
    packages: tuple[PackageChange, ...] = ()
    environment: tuple[FileChange, ...] = ()
    environment_complete: bool = True
    environ: tuple[EnvironmentVariable, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing differs that the checkpoints know of."""
        return not (
            self.added
            or self.removed
            or self.changed
            or self.files
            or self.packages
            or self.environment
            or not self.environment_complete
            or self.environ
        )


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
    effects: tuple[EffectRecord, ...] = ()
    compensations: tuple[CompensationRecord, ...] = ()
    process: str | None = None
    """The engine whose capture of the memory was brought back: ``fork``, ``image``, ``criu``,
    ``dmtcp``, ``dill``; None where the process stayed."""


@dataclass(frozen=True)
class EffectRecord:
    """What a cell did that no rollback undoes.

    ``cell`` is ``#5`` or ``[7]``, ``at`` in seconds since the epoch, ``local`` within the machine.
    """

    kind: str
    subject: str
    count: int
    at: float
    local: bool
    cell: str
    text: str


@dataclass(frozen=True)
class CompensationRecord:
    """An undo that a cell has registered. ``outcome``: ok, error, gone or not run."""

    id: str
    text: str
    cell: str
    outcome: str
    error: str | None


@dataclass(frozen=True)
class CellRecord:
    """A cell that ran; docs/protocol.md says what is in ``content``, which is all of it."""

    source: str
    cell_id: str | None
    execution_count: int
    outcome: str
    ename: str | None
    duration_s: float
    before: str | None
    checkpoint: str | None
    effects: tuple[EffectRecord, ...]
    content: Mapping[str, Any]


@dataclass(frozen=True)
class ReplayResult:
    """What a replay did, or with ``dry_run`` would do. ``text`` tells it in words.

    ``cells`` ran, ``not_run`` did not; ``stopped``: None, difference, interrupted or died.
    """

    checkpoint: Record
    restored: RestoreResult | None
    cells: tuple[Mapping[str, Any], ...]
    not_run: tuple[Mapping[str, Any], ...]
    effects: tuple[EffectRecord, ...]
    stopped: str | None
    dry_run: bool
    took_ms: float
    text: str


@dataclass(frozen=True)
class Brought:
    """Single variables or files of ``checkpoint`` that are in the present now."""

    checkpoint: Record
    safety: Record
    names: tuple[str, ...]
    text: str
    files: tuple[FileChange, ...] = ()


@dataclass(frozen=True)
class Counted:
    """How many names differ, and the first of them, each with its sign: ``+``, ``-`` or ``~``."""

    count: int
    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Changes:
    """What a checkpoint changed since its parent; None where that is not known."""

    checkpoint: str
    parent: str
    variables: Counted
    files: Counted | None
    packages: Counted | None


@dataclass(frozen=True)
class ShownFile:
    """A file as it was: ``text``, or an image in ``data``; neither where it is something else."""

    path: str
    root: str
    exists: bool
    size: int | None
    mime: str | None
    text: str | None
    data: bytes | None
    truncated: bool


@dataclass(frozen=True)
class ShownVariable:
    """A variable as a notebook would show it, by MIME type; or ``error``: why it is not shown."""

    name: str
    data: Mapping[str, str]
    error: str | None


@dataclass(frozen=True)
class DocumentCell:
    """A cell of a notebook as it was; ``trusted``: whether its outputs may run scripts."""

    digest: str
    trusted: bool
    cell: Mapping[str, Any]


@dataclass(frozen=True)
class Verified:
    """What loading the capture on the disk for real has shown; no problems: it holds."""

    checkpoint: Record
    problems: tuple[str, ...]


@dataclass(frozen=True)
class ResetResult:
    """What a reset threw away; ``safety`` holds it. ``text`` tells it in words."""

    safety: Record
    process: bool
    packages: tuple[PackageChange, ...]
    files: tuple[FileChange, ...]
    environment: tuple[FileChange, ...]
    environment_complete: bool
    took_ms: float
    text: str


@dataclass(frozen=True)
class OutsideDirectory:
    """Files below a directory; ``names`` if they are few. ``bytes``: of those not deleted."""

    path: str
    files: int
    bytes: int
    deleted: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class OutsideFile:
    """One file, by its absolute path."""

    path: str
    kind: str
    size: int | None


@dataclass(frozen=True)
class Outside:
    """What was written outside of the workspace and the host does not have."""

    directories: tuple[OutsideDirectory, ...]
    cache_files: int
    cache_bytes: int
    files: tuple[OutsideFile, ...]
    complete: bool


@dataclass(frozen=True)
class AppliedPath:
    """What was done to a path of the host: created, replaced, deleted or attributes."""

    path: str
    action: str
    note: str


@dataclass(frozen=True)
class Applied:
    """What was copied to the host, or with ``dry_run`` would be. ``text`` tells it in words."""

    done: tuple[AppliedPath, ...]
    bytes: int
    dry_run: bool
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
    environment: Mapping[str, Any] = field(default_factory=dict)
    notebook: str | None = None
    kernel_name: str | None = None
    store: Mapping[str, Any] = field(default_factory=dict)


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
    return Record(
        **known,
        is_head=bool(data.get("is_head")),
        effects=int(data.get("effects", 0)),
        ancestors=ancestors or tuple,
    )


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
        files=_file_changes(result["files"]),
        packages=_package_changes(result),
        environment=_file_changes(result.get("environment", ())),
        environment_complete=bool(result.get("environment_complete", True)),
        environ=tuple(
            EnvironmentVariable(one["name"], one["before"], one["after"])
            for one in result.get("environ", ())
        ),
    )


def _file_changes(changes: Iterable[Result]) -> tuple[FileChange, ...]:
    return tuple(
        FileChange(
            path=change["path"],
            root=change["root"],
            kind=change["kind"],
            size_before=change.get("size_before"),
            size_after=change.get("size_after"),
        )
        for change in changes
    )


def _package_changes(result: Result) -> tuple[PackageChange, ...]:
    return tuple(
        PackageChange(one["manager"], one["name"], one["before"], one["after"], one["where"])
        for one in result.get("packages", ())
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
        effects=_effects(result),
        compensations=tuple(CompensationRecord(**one) for one in result.get("compensations", ())),
        process=result.get("process"),
    )


def _effects(result: Result) -> tuple[EffectRecord, ...]:
    return tuple(EffectRecord(**one) for one in result.get("effects", ()))


def read_cells(result: Result) -> list[CellRecord]:
    """The answer of ``cells``."""
    plain = (
        "source", "cell_id", "execution_count", "outcome", "ename", "duration_s", "before",
        "checkpoint",
    )  # fmt: skip
    return [
        CellRecord(**{name: one[name] for name in plain}, effects=_effects(one), content=one)
        for one in result["cells"]
    ]


def read_replay(result: Result) -> ReplayResult:
    """The answer of ``replay``."""
    restored = result["restored"]
    return ReplayResult(
        checkpoint=read_record(result["checkpoint"]),
        restored=None if restored is None else read_restore(restored),
        cells=tuple(result["cells"]),
        not_run=tuple(result["not_run"]),
        effects=_effects(result),
        stopped=result["stopped"],
        dry_run=bool(result["dry_run"]),
        took_ms=float(result["took_ms"]),
        text=result["text"],
    )


def read_brought(result: Result) -> Brought:
    """The answer of ``bring``."""
    return Brought(
        checkpoint=read_record(result["checkpoint"]),
        safety=read_record(result["safety"]),
        names=tuple(result["names"]),
        text=result["text"],
        files=_file_changes(result.get("files", ())),
    )


def read_changes(result: Result) -> tuple[Changes, ...]:
    """The answer of ``changes``."""
    return tuple(
        Changes(
            one["checkpoint"],
            one["parent"],
            _counted(one["variables"]),
            None if one["files"] is None else _counted(one["files"]),
            None if one["packages"] is None else _counted(one["packages"]),
        )
        for one in result["changes"]
    )


def _counted(data: Result) -> Counted:
    return Counted(data["count"], tuple((sign, name) for sign, name in data["names"]))


def read_file(result: Result) -> ShownFile:
    """The answer of ``file``."""
    known = {f.name: result[f.name] for f in fields(ShownFile)}
    data = result["data"]
    return ShownFile(**{**known, "data": None if data is None else base64.b64decode(data)})


def read_shown(result: Result) -> tuple[ShownVariable, ...]:
    """The answer of ``show``."""
    return tuple(
        ShownVariable(name, one.get("data", {}), one.get("error"))
        for name, one in result["shown"].items()
    )


def read_document(result: Result) -> tuple[DocumentCell, ...]:
    """The answer of ``document``."""
    return tuple(DocumentCell(**one) for one in result["cells"])


def read_verified(result: Result) -> tuple[Verified, ...]:
    """The answer of ``verify``."""
    return tuple(
        Verified(read_record(one["checkpoint"]), tuple(one["problems"]))
        for one in result["verified"]
    )


def read_reset(result: Result) -> ResetResult:
    """The answer of ``reset``."""
    return ResetResult(
        safety=read_record(result["safety"]),
        process=bool(result["process"]),
        packages=_package_changes(result),
        files=_file_changes(result["files"]),
        environment=_file_changes(result["environment"]),
        environment_complete=bool(result["environment_complete"]),
        took_ms=float(result["took_ms"]),
        text=result["text"],
    )


def read_outside(result: Result) -> Outside:
    """The answer of ``outside``."""
    return Outside(
        directories=tuple(
            OutsideDirectory(
                row["path"], row["files"], row["bytes"], row["deleted"], tuple(row["names"])
            )
            for row in result["directories"]
        ),
        cache_files=result["caches"]["files"],
        cache_bytes=result["caches"]["bytes"],
        files=tuple(OutsideFile(f["path"], f["kind"], f["size"]) for f in result["files"]),
        complete=bool(result["complete"]),
    )


def read_applied(result: Result) -> Applied:
    """The answer of ``apply``."""
    return Applied(
        done=tuple(AppliedPath(one["path"], one["action"], one["note"]) for one in result["done"]),
        bytes=result["bytes"],
        dry_run=bool(result["dry_run"]),
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
        environment=result.get("environment") or {},
        notebook=result.get("notebook"),
        kernel_name=result.get("kernel_name"),
        store=result.get("store") or {},
    )
