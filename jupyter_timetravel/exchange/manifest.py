"""``timetravel.json``, the first member of an export: written from a timeline, read with distrust.

Ids are made anew when it is read, so a file can be imported twice, and beside its original.
Nothing in it is a path that anything is written to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any, Final, get_args

from jupyter_timetravel.exchange import cells
from kernel_runtime.engines.loaded import MONOTONIC, clock_of
from kernel_runtime.errors import TimeTravelError
from kernel_runtime.timeline import Capture, Checkpoint, Timeline, TimelineState, new_id
from kernel_runtime.timeline.model import (
    REASONS,
    CaptureKind,
    CaptureState,
    check_text,
    from_record,
    record,
)
from kernel_runtime.timeline.names import check_label

NAME: Final = "timetravel.json"
SIGNATURE: Final = "signature.json"
PURPOSE: Final = "export 1"
FORMAT: Final = 1
LARGEST: Final = 256 << 20
"""Bytes that the list of checkpoints may have, the summaries of variables included."""

IMAGE: Final = "image"
"""The engine whose captures are process images."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_LAYER: Final = re.compile(r"[0-9A-Za-z]{1,64}", re.ASCII)
_ENDED: Final = "only what outlives a kernel is in a file"


class NoManifest(Exception):
    """It is not one that this version writes, or its parts do not fit."""


@dataclass(frozen=True)
class Contents:
    """What a file says that it holds. total: bytes of all content. members: how many."""

    key: str
    notebook: str
    kernel_name: str
    exported_at: str
    total: int
    members: int
    state: TimelineState
    checkpoints: tuple[Checkpoint, ...]

    def needed_layers(self) -> set[str]:
        """The layers that its checkpoints name."""
        return {layer for one in self.checkpoints for layer in layers_of(one)}


def layers_of(checkpoint: Checkpoint) -> set[str]:
    """The layers of the environment that a checkpoint needs."""
    capture = checkpoint.capture("filesystem", engine="overlay")
    if capture is None or capture.state != "ready":
        return set()
    stacks = capture.details["stacks"].values()
    return {*(layer for stack in stacks for layer in stack), capture.details["root_layer"]} - {""}


def kept(captures: Iterable[Capture], images: Collection[str] = ()) -> list[Capture]:
    """The captures as they are in a file: what ended with its kernel has ended.

    Images of processes are bound to their machine, and hold whatever was in memory; none is kept
    but those that `images` names. The notebook as it was stays where it is: its outputs are not
    looked for secrets.
    """
    return [_kept(one, images) for one in captures if one.kind != "document"]


def _kept(capture: Capture, images: Collection[str]) -> Capture:
    if capture.engine == IMAGE and capture.state == "ready" and capture.ref in images:
        return capture
    if capture.kind != "process":
        if (capture.is_durable and capture.ref is not None) or capture.engine == "overlay":
            return capture
        if capture.state in ("failed", "evicted"):  # with its own reason
            return replace(capture, ref=None, details={})
    return replace(capture, state="evicted", ref=None, bytes=0, error=_ENDED, details={})


def row(
    timeline: Timeline, checkpoint: Checkpoint, known: Collection[str], *, head: str
) -> dict[str, Any]:
    """One checkpoint. known: ids of all that are in the list; others are left out of its line."""
    line = [id for id in timeline.history(checkpoint.id) if id in known]
    parent = line[-1] if line else None
    found = record(checkpoint, is_head=checkpoint.id == head)
    found["parent"] = parent
    found["variables"] = {name: dict(summary) for name, summary in checkpoint.variables.items()}
    found["cells"] = cells.write(timeline, checkpoint, parent)
    for shown, capture in zip(found["captures"], checkpoint.captures):
        shown["ref"], shown["details"] = capture.ref, dict(capture.details)
    return found


def write(
    timeline: Timeline,
    checkpoints: Iterable[Checkpoint],
    *,
    key: str,
    notebook: str,
    kernel_name: str,
    total: int,
    members: int,
) -> bytes:
    """The member's bytes. Parents that are not among the checkpoints are left out."""
    chosen = list(checkpoints)
    ids = {one.id for one in chosen}
    head = timeline.state.head if timeline.state.head in ids else chosen[-1].id
    data = {
        "format": FORMAT,
        "made_by": version("jupyter_timetravel"),
        "key": key,
        "notebook": notebook,
        "kernel_name": kernel_name,
        "exported_at": datetime.now(timezone.utc).isoformat(),
        "total": total,
        "members": members,
        "head": head,
        "next_number": timeline.state.next_number,
        "checkpoints": [row(timeline, one, ids, head=str(head)) for one in chosen],
    }
    return json.dumps(data).encode("ascii")


def read(data: bytes) -> Contents:
    """The inverse, with ids of its own. Raises NoManifest."""
    try:
        value: Mapping[str, Any] = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NoManifest(f"its list of checkpoints is damaged ({error!r:.200})") from error
    return read_value(value)


def read_value(value: Mapping[str, Any], images: Collection[str] = ()) -> Contents:
    """Likewise, of the JSON value. images: refs of process images that are there."""
    try:
        if value["format"] != FORMAT:
            raise NoManifest(
                f"its format is {value['format']!r}, and this jupyter_timetravel knows {FORMAT}"
            )
        ids = {str(row["id"]): new_id() for row in value["checkpoints"]}
        checkpoints = tuple(_checkpoint(row, ids, images) for row in value["checkpoints"])
        numbers = [one.number for one in checkpoints]
        if len(ids) != len(checkpoints) or len(set(numbers)) != len(numbers) or not numbers:
            raise NoManifest("two of its checkpoints have one name, or there are none")
        next_number = max(int(value["next_number"]), max(numbers) + 1)
        state = TimelineState(new_id(), ids[value["head"]], None, next_number)
        Timeline(state, checkpoints)  # that they form a tree
        contents = Contents(
            key=_text(value["key"], 64),
            notebook=_text(value["notebook"], 255),
            kernel_name=_text(value["kernel_name"], 255),
            exported_at=datetime.fromisoformat(value["exported_at"]).isoformat(),
            total=_count(value["total"]),
            members=_count(value["members"]),
            state=state,
            checkpoints=checkpoints,
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise NoManifest(f"its list of checkpoints is damaged ({error!r:.200})") from error
    except TimeTravelError as error:
        raise NoManifest(f"its list of checkpoints is damaged: {error}") from error
    return contents


def _checkpoint(
    row: Mapping[str, Any], ids: Mapping[str, str], images: Collection[str]
) -> Checkpoint:
    parent = row["parent"]
    given = from_record({**row, "id": ids[row["id"]], "parent": parent and ids[parent]})
    if given.reason not in REASONS or isinstance(given.number, bool) or given.number < 0:
        raise NoManifest(f"checkpoint {given.number!r:.40} is none")
    check_text(given.comment, "comment")
    check_text(given.code, "cell")
    if given.label is not None:
        check_label(given.label)
    variables = {_text(name, 10_000): dict(summary) for name, summary in row["variables"].items()}
    return replace(
        given,
        pinned=bool(given.pinned),
        is_auto=bool(given.is_auto),
        captures=tuple(_capture(*pair, images) for pair in zip(given.captures, row["captures"])),
        variables=variables,
        cells=cells.read(row.get("cells", []), ids),
    )


def _capture(given: Capture, row: Mapping[str, Any], images: Collection[str]) -> Capture:
    if given.kind not in get_args(CaptureKind) or given.state not in get_args(CaptureState):
        raise NoManifest(f"a capture is of no known kind ({given.kind!r:.40})")
    _text(given.engine, 100)
    _count(given.bytes)
    if given.state != "ready":
        return given
    if given.kind == "process" and (given.engine != IMAGE or row["ref"] not in images):
        raise NoManifest("it names the memory of a process, which no export holds")
    if given.kind == "document":
        raise NoManifest("it names a document, which no export holds")
    if given.engine == "overlay":
        # Nothing else of what a sandbox was set up with is taken from a file.
        return replace(given, details=_stacks(row["details"]))
    ref = row["ref"]
    if not isinstance(ref, str) or not _DIGEST.fullmatch(ref):
        raise NoManifest(f"a capture names something that is no content ({ref!r:.80})")
    clock_ns = clock_of(row["details"])
    clock = {MONOTONIC: clock_ns} if clock_ns else {}
    return replace(given, ref=ref, details={**given.details, **clock})


def _stacks(details: Mapping[str, Any]) -> dict[str, Any]:
    stacks: dict[str, list[str]] = {}
    for root, layers in details["stacks"].items():
        names = root.split("/")[1:] if root.startswith("/") else [""]
        if root != "/" and any(name in ("", ".", "..") or "\0" in name for name in names):
            raise NoManifest(f"{root!r:.80} is no directory that layers lie over")
        stacks[root] = [_layer(layer) for layer in layers]
    root_layer = details["root_layer"]
    return {"stacks": stacks, "root_layer": _layer(root_layer) if root_layer else ""}


def _layer(name: Any) -> str:
    if not isinstance(name, str) or not _LAYER.fullmatch(name):
        raise NoManifest(f"{name!r:.80} is no name of a layer")
    return name


def _text(value: Any, longest: int) -> str:
    if not isinstance(value, str) or len(value) > longest:
        raise NoManifest(f"{value!r:.40} is no text that may be there")
    return check_text(value, "name")


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 60:
        raise NoManifest(f"{value!r:.40} is no size")
    return value
