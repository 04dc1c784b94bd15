"""Where a secret is in one timeline, and all that will go with it. Reads only."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_timetravel.offline import stored
from jupyter_timetravel.offline.environment import StoredEnvironment, overlay_of
from jupyter_timetravel.offline.stored import Session
from jupyter_timetravel.redaction import layers, records, variables
from jupyter_timetravel.redaction.files import At, Snapshots
from jupyter_timetravel.redaction.needle import Needle
from kernel_runtime.engines.charges import room_of
from kernel_runtime.engines.workspace.errors import WorkspaceError
from kernel_runtime.engines.workspace.names import printable
from kernel_runtime.engines.workspace.snapshots import read_manifest
from kernel_runtime.engines.workspace.tree import TreeDamaged
from kernel_runtime.errors import EnvironmentRefused
from kernel_runtime.store import dmtcp_images, dumps, images
from kernel_runtime.store.blobs import BlobStore
from kernel_runtime.store.documents import DocumentStore
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.namespaces import NamespaceStore
from kernel_runtime.timeline import Capture, Checkpoint

_FOLDERS = {"image": images.FOLDER, "criu": dumps.FOLDER, "dmtcp": dmtcp_images.FOLDER}
_PIECE = 1 << 20


@dataclass
class Stores:
    """What a store's captures are made of."""

    directory: Path
    files: BlobStore = field(init=False)
    namespaces: NamespaceStore = field(init=False)
    documents: DocumentStore = field(init=False)

    def __post_init__(self) -> None:
        self.files = BlobStore(self.directory)
        self.namespaces = NamespaceStore(self.directory)
        self.documents = DocumentStore(self.directory)


@dataclass
class Plan:
    """What will be done to one timeline. Refs are those of captures."""

    session: Session
    environment: StoredEnvironment | None = None
    where: dict[str, list[int]] = field(default_factory=dict)
    """What was found, in words, and in which checkpoints."""
    lost: dict[str, list[int]] = field(default_factory=dict)
    """Variables that go, with the reason, likewise."""
    namespaces: dict[str, variables.Found] = field(default_factory=dict)
    snapshots: dict[str, set[At]] = field(default_factory=dict)
    documents: set[str] = field(default_factory=set)
    records: dict[str, Checkpoint] = field(default_factory=dict)
    """Checkpoints as they are with their texts cleaned, by id."""
    hits: list[layers.Hit] = field(default_factory=list)
    processes: set[tuple[str, str]] = field(default_factory=set)
    """Engine and ref of what was written of processes: all of the timeline's."""
    processes_bytes: int = 0
    unread: dict[str, str] = field(default_factory=dict)
    """What could not be looked into, and why."""
    mentions: list[int] = field(default_factory=list)
    """Checkpoints whose cells name a variable that goes."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was found."""
        return not (self.where or self.lost)


def look(stores: Stores, session: Session, needle: Needle) -> Plan:
    """Look for it in everything that the timeline's checkpoints hold. Raises StoreError."""
    plan = Plan(session)
    snapshots = Snapshots(stores.files, needle, plan.unread)
    for checkpoint in session.timeline:
        for capture in checkpoint.captures:
            _capture(stores, snapshots, plan, checkpoint, capture, needle)
    _environment(plan, needle)
    for checkpoint in session.timeline:
        _records(plan, checkpoint, needle)
    _processes(stores.directory, plan, needle)
    return plan


def _capture(
    stores: Stores,
    snapshots: Snapshots,
    plan: Plan,
    checkpoint: Checkpoint,
    capture: Capture,
    needle: Needle,
) -> None:
    ref = capture.ref
    if capture.kind == "process" and capture.engine in _FOLDERS and ref:
        plan.processes.add((capture.engine, ref))
    if capture.state != "ready" or not ref:
        return
    try:
        if capture.kind == "namespace":
            if ref not in plan.namespaces:
                manifest = stores.namespaces.manifest(ref)
                plan.namespaces[ref] = variables.look(stores.namespaces, manifest, needle)
            _tell_variables(plan, plan.namespaces[ref], checkpoint.number)
        elif capture.kind == "document":
            if ref in plan.documents or records.holds(stores.documents, ref, needle):
                plan.documents.add(ref)
                _at(plan.where, "the notebook as it was", checkpoint.number)
        elif capture.kind == "filesystem" and capture.engine != "overlay":
            if ref not in plan.snapshots:
                plan.snapshots[ref] = snapshots.look(ref, _tops_now(stores, plan, ref))
            for _, path in sorted(plan.snapshots[ref]):
                shown = needle.cleaned(printable(path))
                _at(plan.where, f"file {shown}", checkpoint.number)
    except (StoreError, WorkspaceError, TreeDamaged, OSError) as error:
        plan.unread[f"#{checkpoint.number}, {capture.kind}"] = str(error).partition(". ")[0]


def _tops_now(stores: Stores, plan: Plan, ref: str) -> Iterable[Path]:
    """Where a snapshot's only directory is by now, if the notebook was moved with it."""
    recorded = [path for path, _ in read_manifest(stores.files, ref).roots]
    if len(recorded) != 1:
        return []
    try:
        return stored.roots_now(recorded, plan.session.info)
    except WorkspaceError:
        return []


def _tell_variables(plan: Plan, found: variables.Found, number: int) -> None:
    for name, why in found.lost.items():
        more = "" if why == variables.REASON else f" ({why.partition(': ')[2]})"
        _at(plan.lost, f"variable {name}{more}", number)
    for what in dict.fromkeys(found.told):
        _at(plan.where, what, number)


def _environment(plan: Plan, needle: Needle) -> None:
    if not plan.session.environment.is_dir():
        return
    try:
        plan.environment = StoredEnvironment(plan.session.environment)
    except EnvironmentRefused as error:
        plan.unread["the environment"] = str(error)
        return
    plan.hits = layers.look(plan.environment, plan.session.timeline, needle, plan.unread)
    for hit in plan.hits:
        holders = [
            one.number
            for one in plan.session.timeline
            if (capture := overlay_of(one)) is not None
            and hit.layer in _layers_of(plan.environment, capture)
        ]
        what = "file" if not hit.attribute else f"attribute {hit.attribute} of"
        shown = needle.cleaned(f"{what} {printable(os.fsencode(hit.shown))}")
        plan.where.setdefault(shown, []).extend(holders)


def _layers_of(environment: StoredEnvironment, capture: Capture) -> set[str]:
    stacks = (capture.details.get("stacks", {}), environment.stacks_of(capture))
    named = {layer for one in stacks for stack in one.values() for layer in stack}
    return {*named, str(capture.details.get("root_layer", ""))}


def _records(plan: Plan, checkpoint: Checkpoint, needle: Needle) -> None:
    namespace = checkpoint.capture("namespace")
    found = plan.namespaces.get(namespace.ref or "") if namespace is not None else None
    clean = records.cleaned(checkpoint, needle, found.lost if found is not None else ())
    if clean is not checkpoint:
        plan.records[checkpoint.id] = clean
        for what in records.parts(checkpoint, clean):
            _at(plan.where, what, checkpoint.number)
    if any(records.names(cell.source, needle.variables) for cell in checkpoint.cells):
        plan.mentions.append(checkpoint.number)


def _processes(directory: Path, plan: Plan, needle: Needle) -> None:
    """Memory is not searched through where something was found: all of it may hold it. Where
    nothing was, it is, since it may be in there alone."""
    paths = [directory / _FOLDERS[engine] / ref for engine, ref in sorted(plan.processes)]
    if plan.is_empty and not any(needle.is_in(_bytes(path, plan)) for path in paths):
        plan.processes = set()
        return
    plan.processes_bytes = room_of(paths)
    numbers = [
        one.number
        for one in plan.session.timeline
        if any((c.engine, c.ref) in plan.processes for c in one.captures)
    ]
    if numbers:
        plan.where["the exact process, whose memory may hold it"] = numbers


def _bytes(path: Path, plan: Plan) -> Iterator[bytes]:
    for file in sorted(path.rglob("*")):
        try:
            with open(file, "rb") as data:
                while piece := data.read(_PIECE):
                    yield piece
        except IsADirectoryError:
            continue
        except OSError as error:
            plan.unread[str(file)] = error.strerror or str(error)


def _at(where: dict[str, list[int]], what: str, number: int) -> None:
    numbers = where.setdefault(what, [])
    if number not in numbers:
        numbers.append(number)


def as_json(plan: Plan) -> dict[str, Any]:
    """For machines."""
    return {
        "timeline": plan.session.info.id,
        "notebook": plan.session.info.path,
        "found": [
            {"what": what, "checkpoints": sorted(set(numbers))}
            for what, numbers in {**plan.lost, **plan.where}.items()
        ],
        "processes_bytes": plan.processes_bytes,
        "unread": [{"what": what, "why": why} for what, why in plan.unread.items()],
        "mentions": sorted(set(plan.mentions)),
    }
