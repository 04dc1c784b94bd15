"""On Windows and macOS everything imports, and says what is missing instead of breaking.

Nobody has such a machine at hand in CI, so a fresh interpreter plays one: the dependencies are
imported first, then the platform's name is changed and what does not exist there is hidden.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

UNIX_MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty", "syslog")
SCRIPT = """
import sys
import IPython, ipykernel.kernelapp, ipykernel.ipkernel, jupyter_client, jupyter_core, psutil, zmq
import asyncio, ctypes, multiprocessing, socket, subprocess, tempfile, traitlets
from contextlib import suppress
from jupyter_client import kernelspec, provisioning
with suppress(ImportError):
    import jupyterlab_server.config

platform, hidden = sys.argv[1], sys.argv[2].split(",")
sys.platform = platform
for name in hidden:
    sys.modules[name] = None

import jupyter_timetravel
import jupyter_timetravel.provisioner
from jupyter_timetravel import cli
import kernel_runtime
import kernel_runtime.errors
import kernel_runtime.store.images
raise SystemExit(cli.main(["doctor"]))
"""


@pytest.mark.parametrize(
    ("platform", "hidden"), [("darwin", ("nothing",)), ("win32", UNIX_MODULES)]
)
def test_doctor_says_what_is_missing(platform: str, hidden: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, platform, ",".join(hidden)],
        capture_output=True, text=True, timeout=120, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "frozen processes need Linux" in done.stdout
    assert "Time travel does not work here." in done.stdout
    assert "itself failed" not in done.stdout
