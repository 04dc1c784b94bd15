"""The directory of a kernel's sockets."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kernel_runtime.store.runtime import (
    SOCKET_NAME_LENGTH,
    SOCKET_PATH_LIMIT,
    runtime_directory,
)

MAKE = "from kernel_runtime.store.runtime import *; print(runtime_directory(), flush=True); input()"


@pytest.mark.parametrize("depth", [0, 200])
def test_it_leaves_room_for_socket_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, depth: int
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        base = tmp_path / ("x" * depth) if depth else Path(short)
        monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(base))
        path = runtime_directory()
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert len(os.fsencode(path)) + 1 + SOCKET_NAME_LENGTH <= SOCKET_PATH_LIMIT
        assert (path.parent == base) is (depth == 0)
        (path / "owner").unlink()
        path.rmdir()


def test_what_killed_kernels_leave_goes_and_nothing_else() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        env = {**os.environ, "JUPYTER_RUNTIME_DIR": short}

        def start() -> tuple[subprocess.Popen[str], Path]:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            process = subprocess.Popen([sys.executable, "-c", MAKE], env=env, text=True, **pipes)
            assert process.stdout is not None
            return process, Path(process.stdout.readline().strip())

        running, kept = start()
        killed, left = start()
        killed.kill()
        killed.communicate()
        others = [Path(short, name) for name in ("timetravel-c-abc", "timetravel-k-making")]
        stranger = Path(short, "timetravel-k-stranger")
        for path in (*others, stranger):
            path.mkdir()
        # of another pid namespace, which may be another machine's
        (stranger / "owner").write_text("pid:[1] 1:1:11111111-1111-1111-1111-111111111111")
        third, last = start()
        assert not left.exists()
        assert all(path.exists() for path in (kept, last, stranger, *others))
        month = 31 * 86400
        os.utime(stranger, (stranger.stat().st_mtime - month,) * 2)
        fourth, _ = start()
        assert not stranger.exists()
        for process in (running, third, fourth):
            process.communicate("\n")
