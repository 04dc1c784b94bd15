"""What the doctor finds about processes on the disk: what an image holds, whether CRIU works."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from jupyter_timetravel.findings import FINE, LIMITED, SKIPPED, Check, Finding, is_linux

_TRY_S = 30.0
_SLEEPER = "import os, time; os.closerange(0, 3); os.fork(); os.close(3); time.sleep(3600)"
"""Has a child; both hold nothing from outside of their sandbox, once they have closed their
descriptor 3."""
_ELSE = (
    "Our own images need no CRIU; they are what is written unless images_by says otherwise. Child "
    "processes come back with it (children=capture), or over DMTCP."
)


def check_images() -> Finding:
    """What whoever reads an image reads."""
    if not is_linux():
        return Finding(SKIPPED, "for Linux only")
    return Finding(
        FINE,
        "An image of a process holds all of its memory, passwords and keys too; only you can read "
        "it. Supervisor.images=False writes none; an encrypted store seals them.",
    )


def check_criu() -> Finding:
    """``criu check``, then a process dumped in one sandbox and restored in another."""
    if not is_linux():
        return Finding(SKIPPED, "for Linux only")
    from kernel_runtime.engines import criu_program  # of no use on other systems

    try:
        program = criu_program.find()
        criu_program.may_run()
    except criu_program.CriuUnusable as error:
        return Finding(SKIPPED, f"{error}. {_ELSE}")
    text = f"CRIU {program.shown_version}, {program.path}"
    command = [program.loader, "--library-path", ":".join(program.libraries), program.path]
    checked = subprocess.run(
        [*command, "check"], capture_output=True, text=True, timeout=_TRY_S, check=False
    )
    if checked.returncode:
        why = (checked.stdout + checked.stderr).strip().splitlines()[-1:]
        return Finding(LIMITED, f"{text}: `criu check` fails: {' '.join(why)}", _ELSE)
    try:
        asyncio.run(_trial(program))
    except Exception as error:  # whatever is wrong with it, it is not to be used
        return Finding(LIMITED, f"{text}: dumping and restoring a process fails: {error}", _ELSE)
    return Finding(
        FINE, f"{text}: a process and its child were dumped, and restored in another sandbox"
    )


async def _trial(program: object) -> None:
    """Raises what went wrong."""
    from kernel_runtime.engines.criu_program import Program, Run
    from kernel_runtime.engines.overlay import held
    from kernel_runtime.sandbox.namespaces import NamespaceSandbox

    assert isinstance(program, Program)
    with tempfile.TemporaryDirectory(prefix="timetravel-") as folder:
        sandbox = NamespaceSandbox(lambda pid, status: None, lambda: None)
        await sandbox.start()
        try:
            ready, closed = os.pipe()
            with open(ready, "rb") as pipe:
                with open(closed, "wb"):
                    argv = [sys.executable, "-I", "-S", "-c", _SLEEPER]
                    pid = await sandbox.spawn(argv, {}, "/", {3: closed})
                await asyncio.to_thread(pipe.read)
            arguments = ["dump", "--leave-running", "--tree", str(pid)]
            await Run(program, sandbox)(arguments, Path(folder), timeout=_TRY_S)
        finally:
            await sandbox.close()
        another = NamespaceSandbox(lambda pid, status: None, lambda: None)
        await another.start()
        try:
            arguments = ["restore", "--restore-detached"]
            await Run(program, another)(arguments, Path(folder), timeout=_TRY_S, past_id=pid + 64)
            if len(held.descendants(pid, another.proc())) != 1:
                raise RuntimeError("it is not there, or its child is not")
        finally:
            await another.close()


CHECKS: tuple[Check, ...] = (
    Check("images", "the exact process on the disk", check_images),
    Check("criu", "images that outlive an update of the system", check_criu),
)
