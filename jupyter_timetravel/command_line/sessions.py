"""The arguments by which commands find their session."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from jupyter_timetravel.access import choosing
from jupyter_timetravel.access.session import Access
from jupyter_timetravel.offline import stored
from kernel_runtime.timeline.names import Spec

_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")


def add_session(
    parser: argparse.ArgumentParser,
    *,
    optional: bool = False,
    store: bool = True,
    newest: bool = True,
) -> None:
    """The argument that names a session, and where to look for it.

    newest: whether leaving it out means the newest kernel.
    """
    default = "; left out: the newest running kernel" if optional and newest else ""
    parser.add_argument(
        "notebook",
        metavar="NOTEBOOK",
        nargs="?" if optional else None,
        help="a notebook's path, the id of a kernel or of a stored session, a connection file, or "
        f"the word newest{default}",
    )
    parser.add_argument("--kernel", metavar="NAME", help="where it was run by several kernels")
    if store:
        stored.add_store(parser)


def add_timeout(parser: argparse.ArgumentParser, default: float) -> None:
    """How long to wait for a kernel."""
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        default=default,
        help="how long to wait for the answer of a running kernel (default: %(default)g)",
    )


@contextmanager
def session(args: argparse.Namespace) -> Iterator[Access]:
    """The session that is meant. Raises NoSuchKernel, NoSuchSession, StoreError."""
    more = {"timeout": args.timeout} if getattr(args, "timeout", None) is not None else {}
    with choosing.opened(
        args.notebook, kernel_name=args.kernel, store=getattr(args, "store", None), **more
    ) as found:
        yield found


def spec(text: str) -> Spec:
    """A number as one, so that an error says ``99`` and not ``'99'``."""
    return int(text) if _NUMBER.fullmatch(text) else text


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(text)
    return value
