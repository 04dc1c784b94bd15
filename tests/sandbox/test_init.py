"""The supervisor's end of init, with a real one."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from kernel_runtime.sandbox.none import NoSandbox

pytestmark = pytest.mark.skipif(os.uname().sysname != "Linux", reason="needs Linux")


async def test_the_end_of_what_ends_at_once_is_not_missed() -> None:
    """Answer and end are read in one go where the supervisor was busy meanwhile."""
    sandbox = NoSandbox(lambda pid, status: None, lambda: None)
    await sandbox.start()
    try:
        spawning = asyncio.create_task(sandbox.spawn(["/bin/sh", "-c", "exit 3"], {}, "/", {}))
        await asyncio.sleep(0)  # it is asked for
        time.sleep(1.0)
        pid = await spawning
        status = await asyncio.wait_for(sandbox.wait_exit(pid), 60)
        assert os.waitstatus_to_exitcode(status) == 3
    finally:
        await sandbox.close()
