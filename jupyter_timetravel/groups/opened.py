"""A group of the store while one request acts on it; the others wait for their turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from kernel_runtime.store import locks
from kernel_runtime.store.database import Store
from kernel_runtime.timeline.groups import Group, GroupRecord, GroupRefused, Unfinished

_LOOK_S = 0.1


@dataclass
class Opened:
    """A group with its records. ``group`` is what the store holds by now."""

    store: Store
    group: Group
    records: list[GroupRecord]

    @property
    def next_number(self) -> int:
        """Of its next record."""
        return max((one.number for one in self.records), default=0) + 1

    async def put(self, group: Group, record: GroupRecord | None = None) -> None:
        """Write, all or nothing. Raises StoreError."""
        # a disk that takes long must not keep leases from being renewed
        await asyncio.to_thread(self.store.groups.put, group, record)
        self.group = group
        if record is not None:
            self.records.append(record)

    def title(self, record_id: str) -> str:
        """``G3``."""
        return next((one.title for one in self.records if one.id == record_id), record_id[:12])

    def refuse_unfinished(self) -> None:
        """Raise GroupRefused if a restore of the group was cut short."""
        if self.group.unfinished is not None:
            raise GroupRefused(
                f"{self.unfinished_text(self.group.unfinished)} Nothing was done; do one of the "
                "two first."
            )

    def unfinished_text(self, unfinished: Unfinished) -> str:
        """What was cut short, and the two ways out."""
        name, title = self.group.name, self.title(unfinished.record)
        return (
            f"A restore of the group {name} to {title} was cut short: its members may be of "
            f"different moments. `jupyter timetravel restore --group {name} {title}` finishes it, "
            f"`jupyter timetravel restore --group {name} --undo` takes it back."
        )


@asynccontextmanager
async def opened(store: Store, name: str, deadline: float) -> AsyncIterator[Opened]:
    """The group, for this request alone.

    deadline: of the monotonic clock. Raises UnknownGroup, StoreError, GroupRefused where another
    request does not end in time.
    """
    group = store.groups.get(name)
    lock = store.directory.resolve() / "locks" / f"group-{group.id}.lock"
    while not locks.acquire(lock):
        if time.monotonic() >= deadline:
            raise GroupRefused(
                f"Another request acts on the group {name}{locks.holder(lock)} and has not ended "
                "in time. Nothing was done; ask again."
            )
        await asyncio.sleep(_LOOK_S)
    try:
        group = store.groups.get(name)  # as the request before has left it
        yield Opened(store, group, store.groups.records(group))
    finally:
        locks.release(lock)
