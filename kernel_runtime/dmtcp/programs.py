"""Command lines for running programs under a coordinator, and for restarting them.

They are lists of arguments, so that they can be run by whatever starts processes: subprocess, a
sandbox, a job system. `launch` and `restart` run them with subprocess.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kernel_runtime.dmtcp.coordinator import HOST, Coordinator
from kernel_runtime.dmtcp.images import inspect
from kernel_runtime.dmtcp.tools import Tools

SIGNAL: Final = 62
"""By which DMTCP stops threads. Its own default is SIGUSR2, which programs use themselves; the
last real-time signals are used by hardly any."""

_LOADER: Final = "mtcp_restart"
_PLACES: Final = ("bin", "lib64/dmtcp", "lib/dmtcp")
"""Where dmtcp_restart looks for it, below the directory that has its own (util_exec.cpp)."""


def launch_command(
    coordinator: Coordinator,
    program: Sequence[str],
    *,
    compress: bool = False,
    signal: int = SIGNAL,
    keep_open_files: bool = False,
) -> list[str]:
    """What runs a program under a coordinator that is there.

    compress: images by gzip, which takes several times as long. keep_open_files: put the content of
    open files into the image (`restart` refuses where a file has changed since).
    """
    can = coordinator.tools.can
    argv = [str(coordinator.tools.launch), *_common(coordinator)]
    argv += ["--gzip" if compress else "--no-gzip"]
    if can("checkpoint signal"):
        argv += ["--ckpt-signal", str(signal)]
    if keep_open_files and can("checkpoint open files"):
        argv += ["--checkpoint-open-files"]
    return [*argv, *program]


def restart_command(
    coordinator: Coordinator, images: Sequence[Path], restart: Path | None = None
) -> list[str]:
    """What restarts the processes of one checkpoint: all of its images, no others.

    restart: a copy of dmtcp_restart that is to be used (`copy_restart`).

    The command either becomes the first of them, or waits for it, or ends at once and leaves them
    to whoever inherits orphans: that depends on who led which session. Their standard streams are
    those of the command. Raises ImageUnreadable, FileNotFoundError.
    """
    for image in images:
        inspect(image)
    argv = [*_in_order(), str(restart or coordinator.tools.restart), *_common(coordinator)]
    return [*argv, *map(str, images)]


def copy_restart(tools: Tools, directory: Path) -> Path:
    """Copy what a restart runs, some 9 MB, into a new directory; return the path of dmtcp_restart.

    DMTCP's loader looks in /proc/self/maps for the mappings of its own file, by the name that
    /proc/self/exe has. Where one overlay lies on another (a sandbox in a container) the kernel
    names the mappings of a file of the lower one from the root of that layer, and the loader finds
    nothing. A directory that is on no overlay is right. Raises OSError.
    """
    top = tools.restart.resolve().parent.parent
    found = [path for path in (top / place / _LOADER for place in _PLACES) if path.exists()]
    if directory.is_symlink():  # a cell may have put anything there, also a way out of the sandbox
        directory.unlink()
    shutil.rmtree(directory, ignore_errors=True)
    programs = directory / "bin"
    programs.mkdir(mode=0o700, parents=True)
    for program in (tools.restart, *found[:1]):
        shutil.copy(program, programs)
    return programs / tools.restart.name


def _in_order() -> list[str]:
    """Restart without address space randomization.

    Otherwise the program break of DMTCP's loader lies, every second time, above that of a program
    at fixed addresses (Debian's python3 is one). glibc then takes what brk(2) answers for success,
    and the next malloc that grows the heap writes to memory that is not its own.
    """
    setarch = shutil.which("setarch")
    return [setarch, platform.machine(), "-R"] if setarch is not None else []


def _common(coordinator: Coordinator) -> list[str]:
    return [
        "--join-coordinator",
        "--coord-host",
        HOST,
        "--coord-port",
        str(coordinator.port),
        "--ckptdir",
        str(coordinator.images),
        "--tmpdir",
        str(coordinator.scratch),
        "-q",
        "-q",
    ]


def clean_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment without settings of another DMTCP computation."""
    found = os.environ if environment is None else environment
    return {name: value for name, value in found.items() if not name.startswith("DMTCP_")}


def launch(
    coordinator: Coordinator, program: Sequence[str], **options: Any
) -> subprocess.Popen[bytes]:
    """Run a program under a coordinator; options as of `launch_command`, the rest as of Popen."""
    names = ("compress", "signal", "keep_open_files")
    ours = {name: options.pop(name) for name in names if name in options}
    env = clean_environment(options.pop("env", None))
    return subprocess.Popen(launch_command(coordinator, program, **ours), env=env, **options)


def restart(
    coordinator: Coordinator, images: Sequence[Path], *, timeout: float = 60.0, **options: Any
) -> subprocess.Popen[bytes]:
    """Restart the processes of a checkpoint; return the command, see `restart_command`.

    Waits until the coordinator is rid of the programs before, timeout in seconds. options as of
    Popen. Raises ImageUnreadable, CommandTimeout, CoordinatorGone.
    """
    argv = restart_command(coordinator, images)
    coordinator.wait_empty(timeout)
    env = clean_environment(options.pop("env", None))
    return subprocess.Popen(argv, env=env, **options)
