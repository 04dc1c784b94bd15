"""How the answers of docs/protocol.md become records: one function for each command."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Final

from jupyter_timetravel.records import (
    Applied,
    AppliedPath,
    Brought,
    CellRecord,
    Changes,
    CompensationRecord,
    Counted,
    Differences,
    DocumentCell,
    EffectRecord,
    EnvironmentVariable,
    FileChange,
    Outside,
    OutsideDirectory,
    OutsideFile,
    PackageChange,
    Record,
    ReplayResult,
    ResetResult,
    RestoreResult,
    Result,
    ShownFile,
    ShownVariable,
    Status,
    Variable,
    VariableChange,
    Verified,
)
from kernel_runtime.timeline.model import Checkpoint, from_record

_FIELDS: Final = tuple(field.name for field in fields(Checkpoint))


def read_record(data: Result, ancestors: Callable[[], tuple[str, ...]] | None = None) -> Record:
    """A record with its history, or with a way to find it. Raises BadRequest if it is none."""
    checkpoint = from_record(data)
    if "history" in data:
        line = tuple(data["history"])
        ancestors = lambda: line  # noqa: E731
    known = {name: getattr(checkpoint, name) for name in _FIELDS}
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
