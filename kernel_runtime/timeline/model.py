"""The records that a timeline is made of: immutable values, no I/O, no clock.

Times are aware datetimes in UTC, sizes are bytes. A change to a checkpoint (a capture
became ready, a label was set) makes a new value with the same id and number; see
``Timeline.replace``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from kernel_runtime.errors import BadRequest
from kernel_runtime.later import dataclass
from kernel_runtime.timeline.cells import Cell, count_effects
from kernel_runtime.timeline.text import storable

CaptureKind = Literal["process", "filesystem", "namespace", "document"]
CaptureState = Literal["pending", "ready", "failed", "evicted"]
Reason = Literal["cell", "manual", "safety", "part", "restart", "start"]
Summary = Mapping[str, Any]
"""Of one variable: type, size, shape, value and fingerprint (``executor.variables``)."""

REASONS: Final = get_args(Reason)
VOLATILE_ENGINES: Final = frozenset({"fork"})
"""Engines whose captures end with the supervisor that made them."""

CODE_LENGTH: Final = 200
NO_VARIABLES: Final[Mapping[str, Summary]] = MappingProxyType({})


@dataclass(frozen=True)
class Coordinate:
    """What the captured state reflects: the last thing that had run, and where."""

    epoch: str
    incarnation: int = 0
    execution_count: int = 0
    cell_id: str | None = None
    msg_id: str | None = None


@dataclass(frozen=True)
class Note:
    """One thing that a capture does not hold: ``child process``, ``1234 (sleep 60)``."""

    kind: str
    subject: str
    detail: str = ""


@dataclass(frozen=True)
class Capture:
    """One part of one checkpoint.

    ``ref`` is the engine's own name for what it keeps (a socket path, a snapshot id) and
    ``details`` its own notes; neither leaves the supervisor.
    """

    kind: CaptureKind
    engine: str
    state: CaptureState = "pending"
    bytes: int = 0
    ref: str | None = None
    error: str | None = None
    not_captured: tuple[Note, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_durable(self) -> bool:
        """Whether it outlives the supervisor."""
        return self.state == "ready" and self.engine not in VOLATILE_ENGINES


@dataclass(frozen=True)
class Checkpoint:
    """One immutable record of a timeline."""

    id: str
    number: int
    parent: str | None
    created_at: datetime
    comment: str
    label: str | None
    pinned: bool
    is_auto: bool
    reason: Reason
    code: str
    coordinate: Coordinate
    captures: tuple[Capture, ...] = ()
    variables: Mapping[str, Summary] = field(default_factory=lambda: NO_VARIABLES)
    cells: tuple[Cell, ...] = ()
    """That ran since the parent, in order."""

    def capture(self, kind: CaptureKind, *, engine: str | None = None) -> Capture | None:
        """The capture of that kind (and engine); a ready one is preferred."""
        found = [
            c for c in self.captures if c.kind == kind and (engine is None or c.engine == engine)
        ]
        return min(found, key=lambda c: c.state != "ready", default=None)

    def with_capture(self, capture: Capture) -> Checkpoint:
        """It with a capture in place of the one of the same kind and engine, or beside others."""
        captures = list(self.captures)
        for position, known in enumerate(captures):
            if (known.kind, known.engine) == (capture.kind, capture.engine):
                captures[position] = capture
                break
        else:
            captures.append(capture)
        return replace(self, captures=tuple(captures))

    @property
    def has_durable_session(self) -> bool:
        """Whether variables can be brought back from it without its frozen process."""
        return any(c.is_durable for c in self.captures if c.kind in ("process", "namespace"))

    @property
    def is_kept(self) -> bool:
        """Whether the user asked for it or named it, so that it goes after all others."""
        return self.pinned or self.label is not None or not self.is_auto


def new_id() -> str:
    """A fresh id of 32 hexadecimal digits."""
    return uuid.uuid4().hex


def check_text(text: str, what: str) -> str:
    """Return ``text``, or raise BadRequest where a store or a terminal could not hold it."""
    if "\0" in text:
        raise BadRequest(
            f"A {what} cannot hold a NUL character. Nothing was done; leave the character out."
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRequest(
            f"A {what} cannot hold half of a surrogate pair. Nothing was done; "
            "leave the character out."
        ) from None
    return text


def first_line(code: str) -> str:
    """The first line of a cell that says something, as text that any store can hold."""
    stripped = code.strip()
    line = stripped.splitlines()[0].rstrip() if stripped else ""
    if len(line) > CODE_LENGTH:
        line = line[: CODE_LENGTH - 1] + "…"
    return storable(line)


def record(
    checkpoint: Checkpoint, *, is_head: bool, history: Iterable[str] | None = None
) -> dict[str, Any]:
    """The checkpoint as docs/protocol.md writes it; ``history`` is left out where it is None."""
    coordinate = checkpoint.coordinate
    out: dict[str, Any] = {
        "id": checkpoint.id,
        "number": checkpoint.number,
        "parent": checkpoint.parent,
        "created_at": checkpoint.created_at.isoformat(timespec="microseconds"),
        "comment": checkpoint.comment,
        "label": checkpoint.label,
        "pinned": checkpoint.pinned,
        "is_auto": checkpoint.is_auto,
        "reason": checkpoint.reason,
        "code": checkpoint.code,
        "is_head": is_head,
        "effects": count_effects(checkpoint.cells),
        "coordinate": {
            "epoch": coordinate.epoch,
            "incarnation": coordinate.incarnation,
            "execution_count": coordinate.execution_count,
            "cell_id": coordinate.cell_id,
            "msg_id": coordinate.msg_id,
        },
        "captures": [
            {
                "kind": capture.kind,
                "engine": capture.engine,
                "state": capture.state,
                "bytes": capture.bytes,
                "error": capture.error,
                "verified_at": capture.details.get("verified_at"),
                "pause_ms": capture.details.get("pause_ms"),
                "children": capture.details.get("children"),
                "not_captured": [
                    {"kind": note.kind, "subject": note.subject, "detail": note.detail}
                    for note in capture.not_captured
                ],
            }
            for capture in checkpoint.captures
        ],
    }
    if history is not None:
        out["history"] = list(history)
    return out


def _details(capture: Mapping[str, Any]) -> Mapping[str, Any]:
    known = ("verified_at", "pause_ms", "children")
    return {name: capture[name] for name in known if capture.get(name) is not None}


def from_record(data: Mapping[str, Any]) -> Checkpoint:
    """The checkpoint that a record describes; what a record does not carry is left empty.

    Raises BadRequest where the record is not one of protocol version 1.
    """
    try:
        created_at = datetime.fromisoformat(data["created_at"])
        return Checkpoint(
            id=data["id"],
            number=data["number"],
            parent=data["parent"],
            created_at=created_at.astimezone(timezone.utc),
            comment=data["comment"],
            label=data["label"],
            pinned=data["pinned"],
            is_auto=data["is_auto"],
            reason=data["reason"],
            code=data["code"],
            coordinate=Coordinate(**data["coordinate"]),
            captures=tuple(
                Capture(
                    kind=c["kind"],
                    engine=c["engine"],
                    state=c["state"],
                    bytes=c["bytes"],
                    error=c["error"],
                    details=_details(c),
                    not_captured=tuple(Note(**note) for note in c["not_captured"]),
                )
                for c in data["captures"]
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadRequest(
            f"This is not a checkpoint record of protocol version 1 ({error!r}). Nothing was done; "
            "use the same version of jupyter_timetravel on both sides."
        ) from error
