"""What the commands of docs/protocol.md answer, as typed values.

Records are values of the moment in which they came. Dictionaries of the protocol that are only
handed on (configuration, memory, engines) stay dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernel_runtime.timeline.model import Checkpoint

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
