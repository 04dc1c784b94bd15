"""Who becomes a member of a group, under which name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jupyter_timetravel.access import choosing
from jupyter_timetravel.access.errors import NoSuchKernel
from jupyter_timetravel.access.running import RunningKernel
from kernel_runtime.errors import BadRequest
from kernel_runtime.store.database import Store
from kernel_runtime.timeline.groups import Group, GroupRefused, Member, check_name
from kernel_runtime.timeline.text import one_line

NAMED: Final = re.compile(r"([^=/]{1,100})=(.+)", re.DOTALL)


def members_of(store: Store, texts: Sequence[str], group: Group | None = None) -> list[Member]:
    """Those that texts mean, ``[NAME=]NOTEBOOK`` each, beside those that a group has.

    Raises NoSuchKernel, BadRequest, GroupRefused.
    """
    stored = {one.id for one in store.timelines()}
    taken = list(group.members) if group is not None else []
    found: list[Member] = []
    for text in texts:
        named = NAMED.fullmatch(text)
        name, target = (named[1], named[2]) if named else ("", text)
        kernel = choosing.kernel_of(target)
        if kernel is None:
            raise NoSuchKernel(
                f"No kernel runs for {one_line(target, 200)}. Nothing was done; start it, and name "
                "the notebook, the kernel's id or its connection file."
            )
        if kernel.timeline not in stored:
            raise GroupRefused(
                f"The checkpoints of {kernel.title} are not in the store {store.directory}. "
                "Nothing was done; members of a group share one store. --docker IMAGE is that of "
                "the kernels in containers of an image, --store DIR another one."
            )
        member = _member(kernel, check_name(name, "member") if named else _default(kernel))
        for other in (*taken, *found):
            if other.name == member.name or other.timeline == member.timeline:
                raise GroupRefused(
                    f"{other.name} is a member already, or given twice. Nothing was done; "
                    "NAME=NOTEBOOK gives a member another name."
                )
        found.append(member)
    return found


def _default(kernel: RunningKernel) -> str:
    """Raises BadRequest where its notebook's name is none for a member."""
    if not kernel.notebook:
        return kernel.id[:8]
    try:
        return check_name(Path(kernel.notebook).stem, "member")
    except BadRequest as error:
        raise BadRequest(f"{error} NAME=NOTEBOOK gives it another one.") from None


def _member(kernel: RunningKernel, name: str) -> Member:
    return Member(name, kernel.timeline, kernel.notebook, str(kernel.connection_file))
