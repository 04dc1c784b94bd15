"""Which session is meant by a name. The rule is told in docs/cli.md."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

from jupyter_timetravel.access import running
from jupyter_timetravel.access.errors import NoSuchKernel
from jupyter_timetravel.access.kept import KeptAccess
from jupyter_timetravel.access.live import LiveAccess
from jupyter_timetravel.access.running import RunningKernel
from jupyter_timetravel.access.session import Access
from jupyter_timetravel.client import DEFAULT_TIMEOUT_S
from kernel_runtime.errors import BadRequest
from kernel_runtime.timeline.text import one_line

NEWEST: Final = "newest"
_BEGINNING: Final = re.compile(r"[0-9a-f][0-9a-f-]{5,35}")


def kernel_of(
    target: str, kernel_name: str | None = None, timeout: float = running.ANSWER_S
) -> RunningKernel | None:
    """The running kernel that is meant; None if the name may be that of a stored session.

    timeout: seconds within which it must say what it is.
    Raises NoSuchKernel where a kernel is named that is not there, or several could be meant.
    """
    if target.endswith(".json") and os.path.isfile(target):
        return running.at(target)
    found = [
        one
        for one in running.survey(timeout)
        if kernel_name is None or one.kernel_name == kernel_name
    ]
    if target == NEWEST:
        if not found:
            raise NoSuchKernel(
                "No kernel with time travel runs. Nothing was done; name a notebook, whose stored "
                "checkpoints are used then, or start a kernel. `jupyter timetravel sessions` "
                "lists what is stored."
            )
        return found[0]
    path = os.path.realpath(target)
    meant = [one for one in found if one.notebook == path]
    if not meant and _BEGINNING.fullmatch(target):
        meant = [one for one in found if one.id.startswith(target)]
        meant = meant or [one for one in found if one.timeline.startswith(target)]
    if len(meant) > 1:
        names = ", ".join(f"{one.id} ({one.kernel_name})" for one in meant)
        raise NoSuchKernel(
            f"Several running kernels are meant by {one_line(target, 200)}: {names}. Nothing was "
            "done; name one by its id, or by --kernel NAME."
        )
    return meant[0] if meant else None


@contextmanager
def opened(
    target: str | None,
    *,
    kernel_name: str | None = None,
    store: str | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> Iterator[Access]:
    """The session that is meant: its running kernel if it has one, else what is stored of it.

    target: path of a notebook, id of a kernel or of a timeline, connection file, ``newest``; None
    is ``newest``. store: look there, and not for kernels. timeout: seconds for each answer of a
    kernel. Raises NoSuchKernel, NoSuchSession, StoreError.
    """
    if store is not None:
        if target in (None, NEWEST):
            raise BadRequest("--store reads a store: name the NOTEBOOK. Nothing was done.")
        assert target is not None
        yield KeptAccess(target, kernel_name, store)
        return
    kernel = kernel_of(target or NEWEST, kernel_name)
    if kernel is None:
        assert target is not None
        kept = KeptAccess(target, kernel_name, store)
        if kept.about()["running"]:
            # what is stored lags behind: a kernel with much to do is given time to answer
            kernel = kernel_of(target, kernel_name, timeout)
        if kernel is None:
            yield kept
            return
    with closing(LiveAccess(kernel, timeout)) as live:
        yield live
