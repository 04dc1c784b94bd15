"""What a copy of the session does: it is woken to be read, and ends.

The frozen process of a checkpoint wakes it (TT_WAKE_COPY, docs/native.md) beside the live session.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from kernel_runtime.executor.native import OpenFile

if TYPE_CHECKING:
    from kernel_runtime.executor.kernel import ExecutorKernel


def serve(kernel: ExecutorKernel, link: int, files: Sequence[OpenFile]) -> NoReturn:
    """Answer over the descriptor link, then end."""
    os.write(link, b"copy")
    os._exit(0)
