"""The user's store as a server uses it: opened for each request, in a thread, never asking."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Final, TypeVar

from jupyter_timetravel.offline.stored import NoSuchSession
from kernel_runtime.store import encryption
from kernel_runtime.store.database import Store, TimelineInfo, open_store
from kernel_runtime.store.database_file import FILE_NAME
from kernel_runtime.store.paths import store_directory

_ID: Final = re.compile(r"[0-9a-f]{6,32}", re.ASCII)


T = TypeVar("T")


async def in_thread(work: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Do something that waits for the disk, without holding up the server.

    Not ``asyncio.to_thread``: that hands on context, in which jupyter_core keeps the server's loop,
    and would run on it what a kernel that is started here has to do.
    """
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, partial(work, *args, **kwargs))


def has_store() -> bool:
    """Whether a kernel has ever kept anything here."""
    return sys.platform.startswith("linux") and (store_directory() / FILE_NAME).exists()


@contextmanager
def opened() -> Iterator[Store]:
    """The store of the user who runs the server.

    Raises StoreError, NoSuchSession if there is none, EncryptionLocked if it needs a passphrase.
    """
    directory = store_directory()
    if not has_store():
        raise NoSuchSession(
            "There is no store: no time-travel kernel has kept anything here. Nothing was done."
        )
    if encryption.is_encrypted(directory):
        encryption.cipher_of(directory)  # with a key file; a server has nobody to ask
    with closing(open_store(directory)) as store:
        yield store


def find(store: Store, id: str) -> TimelineInfo:
    """The timeline with that id, or the only one that begins so. Raises NoSuchSession."""
    found = []
    if _ID.fullmatch(id):
        found = [info for info in store.timelines() if info.id.startswith(id)]
    if len(found) == 1:
        return found[0]
    why = "several sessions whose ids begin like" if found else "no session"
    raise NoSuchSession(
        f"The server has {why} {id[:200]!r}. Nothing was done; GET /api/timetravel/sessions lists "
        "what there is."
    )
