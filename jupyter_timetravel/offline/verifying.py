"""Loading what is on the disk for real, and comparing, where no kernel runs.

A pickle is code, so it is loaded where the notebook's own code runs: a kernel of its own is
started, which loads each capture in a scratch process of its sandbox, and ends. Nothing of the
session changes but the date on each capture that held.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from jupyter_client.kernelspec import NoSuchKernel
from jupyter_client.manager import KernelManager

from jupyter_timetravel.client import Client
from jupyter_timetravel.commands import Command
from jupyter_timetravel.offline import stored
from jupyter_timetravel.offline.stored import NoSuchSession, SessionInUse
from jupyter_timetravel.records import Result
from kernel_runtime.store import encryption
from kernel_runtime.store.database import Store, TimelineInfo
from kernel_runtime.store.encryption import EncryptionLocked
from kernel_runtime.store.paths import STORE_VARIABLE

_TIMEOUT_S: Final = 3600.0
_START_S: Final = 120.0


def check(store: Store, info: TimelineInfo) -> None:
    """Raise SessionInUse, NoSuchSession, NotTrusted or EncryptionLocked if it cannot be done."""
    stored.refuse_untrusted(info)
    if info.in_use:
        raise SessionInUse(
            f"A kernel runs on {info.path}. Nothing was done; `%timetravel verify` there does the "
            "same."
        )
    if info.path is None or not os.path.exists(info.path):
        raise NoSuchSession(
            f"The notebook of session {info.id[:12]} is gone, so no kernel can be started for it. "
            "Nothing was done."
        )
    if encryption.is_encrypted(store.directory) and not encryption.key_file(store.directory):
        raise EncryptionLocked(
            store.directory / encryption.FILE_NAME, "the kernel that verifies asks for nothing"
        )


def asked(info: TimelineInfo, store: Path, command: Command[Any]) -> Result:
    """The answer of a kernel that is started to look at a session, and ends then.

    Raises NoSuchSession if it cannot be started, and what it answers.
    """
    assert info.path is not None
    env = {**os.environ, "JPY_SESSION_NAME": info.path, STORE_VARIABLE: str(store)}
    manager = KernelManager(kernel_name=info.kernel_name)
    try:
        manager.start_kernel(
            cwd=str(Path(info.path).parent),
            env=env,
            extra_arguments=["--Supervisor.visit=True"],
        )
    except NoSuchKernel as error:
        raise NoSuchSession(
            f"The kernel {info.kernel_name} is not installed, so nothing can be loaded. Nothing "
            "was done; `jupyter timetravel install` installs it."
        ) from error
    try:
        _wait_for(manager)
        with Client(manager, timeout=_TIMEOUT_S) as client:
            return client.ask(command)
    finally:
        manager.shutdown_kernel()


def _wait_for(manager: KernelManager) -> None:
    """Until the first process is there: before, the kernel cannot say what it is."""
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=_START_S)
    except RuntimeError as error:
        raise NoSuchSession(
            f"The kernel {manager.kernel_name} did not start: {error}. Nothing was done."
        ) from error
    finally:
        client.stop_channels()
