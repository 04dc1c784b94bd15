"""Whether DMTCP is there and works here: a small process is checkpointed and restarted."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from jupyter_timetravel.findings import FINE, LIMITED, SKIPPED, Check, Finding
from kernel_runtime.dmtcp import (
    Coordinator,
    DmtcpError,
    DmtcpMissing,
    DmtcpTooOld,
    find,
    launch,
    restart,
)

_PATIENCE_S = 20.0
_LOOK_S = 0.02
# answers each question with the next number: one that it gives after a restart was in its memory
_PROGRAM = """
import os, sys, time
count = 0
while True:
    count += 1
    open(f"{count}.answer", "w").close()
    while not os.path.exists(f"{count}.asked"):
        time.sleep(0.01)
"""


def check_dmtcp() -> Finding:
    """Not having it costs nothing: it is for Supervisor.process_engine=dmtcp alone."""
    try:
        tools = find()
    except (DmtcpMissing, DmtcpTooOld) as error:
        return Finding(SKIPPED, f"Only Supervisor.process_engine=dmtcp needs it. {error}")
    try:
        with tempfile.TemporaryDirectory(prefix="tt-dmtcp-") as directory:
            started = time.monotonic()
            _try(Path(directory))
    except (DmtcpError, OSError, subprocess.SubprocessError) as error:
        return Finding(
            LIMITED,
            f"DMTCP {tools.version_text} is installed and does not work here: {error}",
            "Use Supervisor.process_engine=fork, which needs no DMTCP.",
        )
    took = time.monotonic() - started
    return Finding(
        FINE,
        f"DMTCP {tools.version_text} ({tools.launch}): a process was checkpointed, killed and "
        f"restarted in {took:.1f} s.",
    )


def _try(directory: Path) -> None:
    with Coordinator(directory / "coordinator") as coordinator:
        argv = [sys.executable, "-I", "-S", "-c", _PROGRAM]
        process = launch(coordinator, argv, cwd=directory, **_quiet())
        try:
            _wait_for(directory / "1.answer")
            images = coordinator.checkpoint(_PATIENCE_S)
        finally:
            process.kill()
            process.wait()
        process = restart(coordinator, images, cwd=directory, **_quiet())
        try:
            (directory / "1.asked").touch()
            _wait_for(directory / "2.answer")
        finally:
            for client in coordinator.clients():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(client.real_pid, 9)
            process.wait(_PATIENCE_S)


def _quiet() -> dict[str, Any]:
    nothing = subprocess.DEVNULL
    return {"stdin": nothing, "stdout": nothing, "stderr": nothing, "start_new_session": True}


def _wait_for(path: Path) -> None:
    end = time.monotonic() + _PATIENCE_S
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"a process did not go on within {_PATIENCE_S:.0f} s")
        time.sleep(_LOOK_S)


CHECKS = (Check("dmtcp", "child processes that come back, as an option", check_dmtcp),)
