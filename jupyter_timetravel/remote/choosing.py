"""Which timeline of a remote is meant."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from jupyter_timetravel.remote import published, sealing
from jupyter_timetravel.remote.bucket import Bucket
from jupyter_timetravel.remote.layout import Ref
from jupyter_timetravel.remote.sealing import Seal
from kernel_runtime.errors import TimeTravelError
from kernel_runtime.store.encryption import Secret
from kernel_runtime.store.errors import EncryptionProblem
from kernel_runtime.timeline.text import one_line, plural

_ID = re.compile(r"[0-9a-f]{6,32}", re.ASCII)


class NoSuchTimeline(TimeTravelError):
    """The remote has no timeline of that name, or several: nothing was done."""


@dataclass
class Published:
    """What a remote has: one ref, the newest, for each timeline, key and seal."""

    refs: list[Ref]
    seals: dict[str, Seal]
    secrets: dict[str, Secret | None]
    closed: dict[str, str]
    """Keys of seals that could not be opened, and why."""
    damaged: list[str]


def look(bucket: Bucket, directory: Path, *, ask: bool) -> Published:
    """Read what is published. ask: open what is sealed, or raise.

    Raises RemoteUnreachable, StoreError.
    """
    seals: dict[str, Seal] = {}
    secrets: dict[str, Secret | None] = {}
    closed: dict[str, str] = {}
    _, sealed, _ = published.refs(bucket)
    for id in sorted({one.sealed for one in sealed}):
        try:
            seals[id], secrets[id] = sealing.of_remote(bucket, id, directory)
        except EncryptionProblem as error:
            if ask:
                raise
            closed[id] = str(error)
    refs, _, damaged = published.refs(bucket, seals.values())
    newest = {(ref.timeline, ref.key, ref.sealed): ref for ref in refs}
    return Published([*newest.values()], seals, secrets, closed, damaged)


def choose(found: Published, bucket: Bucket, what: str | None) -> Ref:
    """The one that is meant. Raises NoSuchTimeline."""
    refs = found.refs
    if what is not None:
        refs = [
            ref
            for ref in refs
            if ref.notebook == what or (_ID.fullmatch(what) and ref.timeline.startswith(what))
        ]
    if len(refs) == 1:
        return refs[0]
    mend = f"`jupyter timetravel remote list {bucket.shown}` shows what there is."
    if refs:
        names = ", ".join(f"{ref.timeline[:12]} ({one_line(ref.notebook, 60)})" for ref in refs)
        if len({ref.timeline for ref in refs}) == 1:
            names += "; several people pushed it, each with a key of their own"
        raise NoSuchTimeline(f"{bucket.shown} has several: {names}. Nothing was done; {mend}")
    damaged = f" {plural(len(found.damaged), 'ref')} cannot be read." if found.damaged else ""
    named = f"no timeline {one_line(what, 100)}" if what is not None else "no timeline"
    raise NoSuchTimeline(f"{bucket.shown} has {named}.{damaged} Nothing was done; {mend}")
