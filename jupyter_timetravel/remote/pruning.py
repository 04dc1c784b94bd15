"""Deleting in a remote that others may push to at the same time, without a lock.

Who deletes writes a marker first, then reads all refs until they stand still, and deletes only old
objects that no list needs. Who pushes publishes its ref first, then waits until there is no marker,
and looks whether all that it relies on is there; what is missing is sent again. So either the
ref was there when the refs were read, and its objects stay; or it came later: then the push sees
the marker, or the deletion has ended: in both cases it misses what was deleted and sends it again.

This needs what `bucket` promises: what was put is seen by everybody at once. A marker of somebody
who was cut off counts for MARKER_S; a round of deletions ends well before. Versions before this
one do not look for markers when they push: for them only the age of objects is a protection.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Final

from jupyter_timetravel.remote import layout, published
from jupyter_timetravel.remote.bucket import Bucket, Entry
from jupyter_timetravel.remote.errors import RemotePruneRefused
from jupyter_timetravel.remote.layout import Coder, Ref
from jupyter_timetravel.remote.published import RemoteDamaged
from jupyter_timetravel.remote.sealing import Seal

MARKER_S: Final = 900.0
_ROUND_S: Final = 120.0
_BATCH: Final = 1000
_TRIES: Final = 5


@dataclass(frozen=True)
class Pruned:
    """What was, or would be, deleted."""

    objects: int
    bytes: int
    young: int
    """Objects that nobody needs and that are not old enough."""


def prune(
    bucket: Bucket, seals: Collection[Seal], older_than: timedelta, *, dry_run: bool
) -> Pruned:
    """Delete objects that no published list needs and that are older than that.

    Raises RemotePruneRefused, RemoteUnreachable: what is published is whole all the same.
    """
    if dry_run:
        gone, young = _unneeded(bucket, seals, datetime.now(timezone.utc) - older_than)
        return Pruned(len(gone), sum(one.size for one in gone), young)
    count = size = 0
    while True:
        name = f"{layout.PRUNES}/{secrets.token_hex(8)}"
        begun = time.monotonic()
        bucket.put(name, b"")
        bucket.settle()
        try:
            marker = next((one for one in bucket.list(layout.PRUNES) if one.name == name), None)
            if marker is None:
                cause = "what was put there is not to be seen"
                raise RemotePruneRefused(bucket.shown, cause, "Its listings cannot be relied on.")
            gone, young = _unneeded(bucket, seals, marker.modified - older_than)
            done = 0
            while done < len(gone) and time.monotonic() - begun < _ROUND_S:
                batch = gone[done : done + _BATCH]
                bucket.delete([one.name for one in batch])
                done += len(batch)
                size += sum(one.size for one in batch)
            count += done
        finally:
            bucket.delete([name])
        if done == len(gone):
            return Pruned(count, size, young)


def taken(bucket: Bucket, named: Collection[str], timeline: str) -> set[str]:
    """Which of these objects somebody has deleted; call it once the ref is published.

    Waits for deletions that are under way. Raises RemoteUnreachable.
    """
    while _deleting(bucket, timeline):
        time.sleep(1.0)
    return set(named) - {one.name for one in bucket.list(layout.OBJECTS)}


def _deleting(bucket: Bucket, timeline: str) -> bool:
    """Whether somebody deletes now. Both times are the remote's own."""
    markers = [one.modified for one in bucket.list(layout.PRUNES)]
    if not markers:
        return False
    name = f"{layout.PRUNES}-seen/{timeline}"
    bucket.put(name, b"")
    now = max((one.modified for one in bucket.list(f"{layout.PRUNES}-seen")), default=markers[0])
    bucket.delete([name])
    return any((now - one).total_seconds() < MARKER_S for one in markers)


def _unneeded(bucket: Bucket, seals: Collection[Seal], before: datetime) -> tuple[list[Entry], int]:
    """Old objects that nobody needs, and how many young ones there are."""
    needed: set[str] = set()
    ciphers = {seal.id: seal.cipher for seal in seals}
    for ref in _steady(bucket, seals):
        coder = Coder(ciphers[ref.sealed] if ref.sealed is not None else None)
        try:
            found = published.read_list(bucket, coder, ref)
        except RemoteDamaged as error:
            mend = "Push that timeline again, or `remote delete` it."
            raise RemotePruneRefused(bucket.shown, str(error), mend) from error
        needed |= {coder.name(digest) for digest in (*found.objects, ref.list)}
    spare = [
        one
        for one in bucket.list(layout.OBJECTS)
        if one.name not in needed and layout.is_object(one.name)
    ]
    # a remote may tell whole seconds; who pushes at this moment looks afterwards (`taken`)
    old = [one for one in spare if one.modified <= before]
    return old, len(spare) - len(old)


def _steady(bucket: Bucket, seals: Iterable[Seal]) -> list[Ref]:
    """All refs, read while no push has put one in the place of another."""
    for _ in range(_TRIES):
        found, closed, damaged = published.refs(bucket, seals)
        if closed:
            cause = f"{len(closed)} refs are sealed with a key that is not here"
            mend = "Name its key file by JUPYTER_TIMETRAVEL_ENCRYPTION, or let its owner do it."
            raise RemotePruneRefused(bucket.shown, cause, mend)
        if damaged:
            mend = "`remote list` shows it; push that timeline again."
            raise RemotePruneRefused(bucket.shown, f"a ref cannot be read: {damaged[0]}", mend)
        names = {one.name for one in bucket.list(layout.REFS)}
        if names == {ref.name for ref in found}:
            return found
    raise RemotePruneRefused(
        bucket.shown, "somebody pushes to it all the time", "Try again when it is quiet."
    )
