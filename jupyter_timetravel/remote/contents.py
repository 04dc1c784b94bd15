"""The checkpoints of a list that was read from a remote, those that are meant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from jupyter_timetravel.exchange import manifest
from jupyter_timetravel.exchange.cells import leading
from jupyter_timetravel.exchange.manifest import Contents, NoManifest
from jupyter_timetravel.remote.layout import Ref
from jupyter_timetravel.remote.listing import BadListing, Listing
from kernel_runtime.timeline import Timeline

_FOREIGN: Final = "the memory of a process is taken from its own user only"


def contents_of(ref: Ref, listing: Listing, chosen: Sequence[str] = ()) -> Contents:
    """All of them, or those that are named: by number, label or comment, or -1.

    Raises BadListing, UnknownCheckpoint.
    """
    try:
        if not ref.is_ours:
            for row in listing.rows:
                for capture in row["captures"]:
                    if capture["kind"] == "process" and capture["state"] == "ready":
                        capture.update(state="evicted", error=_FOREIGN, ref=None)
        images = listing.images.keys() if ref.is_ours else ()
        found = manifest.read_value(listing.value, images)
    except (NoManifest, KeyError, TypeError, AttributeError) as error:
        raise BadListing(str(error)) from error
    return _only(found, chosen) if chosen else found


def _only(contents: Contents, chosen: Sequence[str]) -> Contents:
    timeline = Timeline(contents.state, contents.checkpoints)
    found = {timeline.resolve(int(one) if _is_number(one) else one).id for one in chosen}
    kept = []
    for one in contents.checkpoints:
        if one.id in found:
            line = [id for id in timeline.history(one.id) if id in found]
            parent = line[-1] if line else None
            kept.append(replace(one, parent=parent, cells=leading(timeline, one, parent)))
    head = contents.state.head if contents.state.head in found else kept[-1].id
    return replace(contents, checkpoints=tuple(kept), state=replace(contents.state, head=head))


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdigit() and len(text) < 19
