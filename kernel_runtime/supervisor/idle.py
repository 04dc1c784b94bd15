"""What is done while a start waits for other processes, so that the first cell need not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from kernel_runtime import later


@contextmanager
def used() -> Iterator[None]:
    """Complete classes in steps of half a millisecond, while what is in the block waits."""
    steps = asyncio.ensure_future(_complete())
    try:
        yield
    finally:
        steps.cancel()


async def _complete() -> None:
    for _ in later.complete():
        await asyncio.sleep(0)
