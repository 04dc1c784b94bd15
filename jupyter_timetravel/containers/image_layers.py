"""A layer of the environment as an image can have it, and what an image cannot say.

In an image every name that begins with ``.wh.`` is a deletion (OCI image-spec, "Layer Filesystem
Changeset"), and an attribute ``user.overlay.*`` may become one, since a rootless daemon unpacks
layers for mounts that keep their notes there. A user's own of that kind are left out where the
checkpoint does not show them, and refused, by name, where it does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from jupyter_timetravel.exchange.layers import OPAQUE, WHITEOUT, LayerEntry, unescaped
from jupyter_timetravel.exchange.members import BadMember, Member
from kernel_runtime.engines.overlay.markers import USER

_MEANS_DELETION: Final = "a name that begins with .wh. says in an image that something is deleted"


def check_name(name: str) -> None:
    """Raises BadMember for a user's file that an image would take for a deletion."""
    if any(part.startswith(WHITEOUT) for part in name.split("/")):
        raise BadMember(name, _MEANS_DELETION)


def for_image(
    entries: Iterable[LayerEntry], prefix: str, is_shown: Callable[[bytes], bool]
) -> Iterator[LayerEntry]:
    """The entries of a layer (exchange/layers.py) as an image has them. Raises BadMember, OSError.

    prefix: where they lie. is_shown: whether a path below it is, in the checkpoint, what this layer
    has there.
    """
    left_out: dict[str, LayerEntry] = {}
    for entry in entries:
        member = entry.member
        try:
            spelled = _spelled(member)
        except BadMember as error:
            if is_shown(_below(error.name, prefix)):
                raise
            left_out[member.name] = entry
            continue
        if spelled is None:
            continue
        if member.kind == "hardlink" and (first := left_out.get(member.target)) is not None:
            entry, member = first, first.member
            spelled = replace(member, name=spelled.name)
        notes = [name for name in member.xattrs if name.startswith(USER.prefix)]
        if notes and is_shown(_below(spelled.name, prefix)):
            raise BadMember(spelled.name, f"in an image its attribute {notes[0]} may hide files")
        kept = {name: value for name, value in member.xattrs.items() if name not in notes}
        yield replace(entry, member=replace(spelled, xattrs=kept))


def _spelled(member: Member) -> Member | None:
    """With the user's names; None for the deletion of what no image has. Raises BadMember."""
    *above, last = member.name.split("/")
    above = [unescaped(part) for part in above]
    if last.startswith(WHITEOUT):
        gone = "" if last == OPAQUE else unescaped(last[len(WHITEOUT) :])
        if any(part.startswith(WHITEOUT) for part in (*above, gone)):
            return None
        last = WHITEOUT + gone if gone else OPAQUE
    else:
        last = unescaped(last)
        check_name("/".join([*above, last]))
    target = member.target
    if member.kind == "hardlink":
        target = "/".join(map(unescaped, target.split("/")))
    return replace(member, name="/".join([*above, last]), target=target)


def _below(name: str, prefix: str) -> bytes:
    return os.fsencode(name[len(prefix) + 1 :])
