"""The list of checkpoints that a ref names: that of an export, and where its content lies.

Beside the fields of ``timetravel.json`` (exchange/manifest.py) it has:

    objects  {digest: bytes}                     all content that the list needs
    layers   {layer: [[digest, bytes], …]}       the pieces of a layer, as a tar file of its own
    held     {name: [[digest, bytes], …]}        the pieces of a large file
    images   {image: {file: [[digest, bytes], …]}}  the pieces of the files of a process image
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any, Final

from jupyter_timetravel.exchange import manifest
from kernel_runtime.timeline import Checkpoint, Timeline

Pieces = list[tuple[str, int]]
"""Digests and sizes of what makes a file, in order."""

LARGEST: Final = manifest.LARGEST
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_FILE: Final = re.compile(r"[0-9a-f]{64}/(manifest|plan|blocks|pages\.ttpages)", re.ASCII)
_MOST_BYTES: Final = 1 << 60


class BadListing(Exception):
    """It is not one that this version writes."""


class Listing:
    """One list, as JSON has it. What a foreign one says was checked as far as its form goes."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value
        self.objects: dict[str, int] = value.setdefault("objects", {})
        self.layers: dict[str, Pieces] = value.setdefault("layers", {})
        self.held: dict[str, Pieces] = value.setdefault("held", {})
        self.images: dict[str, dict[str, Pieces]] = value.setdefault("images", {})

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The checkpoints, by number."""
        rows: list[dict[str, Any]] = self.value["checkpoints"]
        return rows

    def as_bytes(self) -> bytes:
        """What is stored."""
        self.value["total"] = sum(self.objects.values())
        self.value["members"] = len(self.objects)
        return json.dumps(self.value, sort_keys=True, separators=(",", ":")).encode("ascii")

    def says_the_same(self, other: Listing) -> bool:
        """Whether both hold the same, whenever they were made."""
        self.as_bytes(), other.as_bytes()
        mine, theirs = ({**one.value, "exported_at": "", "made_by": ""} for one in (self, other))
        return bool(json.loads(json.dumps(mine)) == json.loads(json.dumps(theirs)))


def read(data: bytes) -> Listing:
    """Raises BadListing."""
    try:
        value = json.loads(data)
        listing = Listing(value)
        for digest, size in listing.objects.items():
            _check(digest, size)
        files = [*listing.layers.values(), *listing.held.values()]
        for image, parts in listing.images.items():
            if not _DIGEST.fullmatch(image) or not all(map(_FILE.fullmatch, parts)):
                raise BadListing("it has an image with a strange file")
            files += parts.values()
        if not all(map(_DIGEST.fullmatch, listing.held)):
            raise BadListing("it has a file with a strange name")
        for pieces in files:
            for digest, size in pieces:
                _check(digest, size)
                if listing.objects.get(digest) != size:
                    raise BadListing("it names a piece that it does not have")
        if len({str(row["id"]) for row in listing.rows}) != len(listing.rows):
            raise BadListing("two of its checkpoints have one name")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadListing(f"it is damaged ({error!r:.100})") from error
    return listing


def _check(digest: Any, size: Any) -> None:
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise BadListing("it names something that is no content")
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < _MOST_BYTES:
        raise BadListing("something of it has no size")


def merged(listings: Iterable[Listing]) -> Listing | None:
    """All checkpoints of some lists of one timeline, which are given oldest first.

    A capture that one of them has stays, also where the newest has lost it.
    """
    result: Listing | None = None
    for one in listings:
        if result is None:
            result = Listing(json.loads(json.dumps(one.value)))
            continue
        rows = {row["id"]: row for row in result.rows}
        for row in one.rows:
            rows[row["id"]] = with_captures_of(row, rows.get(row["id"]))
        ordered = sorted(rows.values(), key=lambda row: int(row["number"]))
        parts: dict[str, Any] = {"checkpoints": ordered}
        for name in ("objects", "layers", "held", "images"):
            parts[name] = {**result.value[name], **one.value[name]}
        parts["next_number"] = max(int(result.value["next_number"]), int(one.value["next_number"]))
        result = Listing({**result.value, **one.value, **parts})
    return result


def with_captures_of(row: dict[str, Any], older: Mapping[str, Any] | None) -> dict[str, Any]:
    """A row, with what another one of the same checkpoint holds and it does not."""
    if older is None:
        return row
    ready = {_kind(c) for c in row["captures"] if c["state"] == "ready"}
    kept = [c for c in older["captures"] if c["state"] == "ready" and _kind(c) not in ready]
    names = {_kind(c) for c in kept}
    return {**row, "captures": [*(c for c in row["captures"] if _kind(c) not in names), *kept]}


def _kind(capture: Mapping[str, Any]) -> tuple[str, str]:
    return str(capture["kind"]), str(capture["engine"])


def of_timeline(
    timeline: Timeline,
    checkpoints: Collection[Checkpoint],
    older: Listing | None,
    *,
    key: str,
    notebook: str,
    kernel_name: str,
) -> Listing:
    """The list of what a remote has of a timeline, and of these checkpoints, without content."""
    chosen = {one.id: one for one in checkpoints}
    before = {str(row["id"]): row for row in older.rows} if older is not None else {}
    known = {*chosen, *before}
    here = [chosen.get(one.id, one) for one in timeline if one.id in known]
    head = timeline.state.head
    if head not in known and older is not None:
        head = older.value["head"]
    if head not in known:
        head = here[-1].id
    rows = dict(before)
    for one in here:
        row = manifest.row(timeline, one, known, head=str(head))
        if one.id not in chosen:  # labels and the like may be new; what it holds is what is there
            row["captures"] = before[one.id]["captures"]
        rows[one.id] = with_captures_of(row, before.get(one.id))
    for id, row in rows.items():
        row["is_head"] = id == head
    value = {
        "format": manifest.FORMAT,
        "made_by": version("jupyter_timetravel"),
        "key": key,
        "notebook": notebook,
        "kernel_name": kernel_name,
        "exported_at": datetime.now(timezone.utc).isoformat(),
        "head": head,
        "next_number": timeline.state.next_number,
        "checkpoints": sorted(rows.values(), key=lambda row: int(row["number"])),
    }
    if older is not None:
        value["next_number"] = max(timeline.state.next_number, int(older.value["next_number"]))
        for name in ("objects", "layers", "held", "images"):
            value[name] = dict(older.value[name])
    return Listing(value)
