"""What a checkpoint and a restart under DMTCP take, against DMTCP's bare programs.

    python bench/dmtcp.py [SIZE_MIB ...]

A Python process with an array of random bytes and a child process. Bare: dmtcp_coordinator,
dmtcp_command --bcheckpoint and dmtcp_restart, as a shell would run them. Ours: the same through
kernel_runtime.dmtcp, with the guarded coordinator. In turns, medians, all in one run. A restart is
timed from the command until the process has done something. Then a kernel under the engine, with
an array of the same size: the whole of %checkpoint and of %restore, which has a safety checkpoint,
the end of the processes before, and the files in it; its process is larger. Needs DMTCP.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from jupyter_client.manager import KernelManager  # noqa: E402

from kernel_runtime.dmtcp import Coordinator, launch, restart  # noqa: E402

ROUNDS = 7
PROGRAM = """
import os, subprocess, sys, time
data = bytearray(os.urandom(1 << 20)) * {mib}
child = subprocess.Popen(["sleep", "100000"])
while True:
    os.utime("beat")
    time.sleep(0.002)
"""
ARRAY = "import os, subprocess; child = subprocess.Popen(['sleep', '100000']); "


def beating(directory: pathlib.Path, since: float) -> Callable[[], bool]:
    return lambda: (directory / "beat").stat().st_mtime > since


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not what():
        if time.monotonic() > end:
            raise TimeoutError("it did not go on")
        time.sleep(0.001)


class Side:
    """The program under one coordinator; fence none: DMTCP's programs as they are."""

    def __init__(self, directory: pathlib.Path, mib: int, *, bare: bool) -> None:
        directory.mkdir()
        self.directory = directory
        self.bare = bare
        (directory / "beat").touch()
        self.coordinator = Coordinator(directory / "c", fence="none" if bare else "namespace")
        self.coordinator.start()
        now = time.time()
        argv = [sys.executable, "-c", PROGRAM.format(mib=mib)]
        self.process = launch(self.coordinator, argv, cwd=directory, start_new_session=True)
        until(lambda: len(self.coordinator.clients()) == 2)
        until(beating(directory, now))

    def checkpoint(self) -> float:
        coordinator = self.coordinator
        started = time.perf_counter()
        if self.bare:
            port = ["--coord-port", str(coordinator.port)]
            subprocess.run([coordinator.tools.command, *port, "--bcheckpoint"], check=True)
        else:
            coordinator.checkpoint()
        return time.perf_counter() - started

    def restart(self) -> float:
        for client in self.coordinator.clients():
            with contextlib.suppress(ProcessLookupError):
                os.kill(client.real_pid, 9)
        self.process.wait()
        self.coordinator.wait_empty()
        images = sorted(self.coordinator.images.glob("*.dmtcp"))
        now = time.time()
        started = time.perf_counter()
        if self.bare:
            argv = [self.coordinator.tools.restart, "--join-coordinator", "-q", "-q"]
            argv += ["--coord-port", str(self.coordinator.port), *images]
            self.process = subprocess.Popen(
                ["setarch", os.uname().machine, "-R", *argv],
                cwd=self.directory,
                start_new_session=True,
            )
        else:
            self.process = restart(
                self.coordinator, images, cwd=self.directory, start_new_session=True
            )
        until(beating(self.directory, now))
        return time.perf_counter() - started

    def close(self) -> None:
        for client in self.coordinator.clients():
            with contextlib.suppress(ProcessLookupError):
                os.kill(client.real_pid, 9)
        self.coordinator.quit()


def programs(top: pathlib.Path, mib: int) -> None:
    sides = [Side(top / f"{name}{mib}", mib, bare=name == "bare") for name in ("bare", "ours")]
    for what in ("checkpoint", "restart"):
        times: list[list[float]] = [[], []]
        for _ in range(ROUNDS):
            for side, found in zip(sides, times):
                found.append(getattr(side, what)())
        bare, ours = map(statistics.median, times)
        print(
            f"{mib:5} MiB  {what:10}  bare {bare:6.3f} s  ours {ours:6.3f} s  {ours / bare:.2f} x"
        )
    for side in sides:
        side.close()


def kernel(top: pathlib.Path, mib: int) -> None:
    os.environ["JUPYTER_TIMETRAVEL_STORE"] = str(top / f"store{mib}")
    os.environ["JUPYTER_TIMETRAVEL_KEYS"] = str(top / "keys")
    os.environ["PYTHONPATH"] = str(ROOT)
    work = top / f"work{mib}"
    work.mkdir()
    manager = KernelManager()
    options = ["--Supervisor.process_engine=dmtcp", "--Supervisor.auto=off"]
    manager.kernel_spec.argv[:] = [
        *(sys.executable, "-m", "kernel_runtime", "-f", "{connection_file}"),
        *options,
    ]
    manager.start_kernel(cwd=str(work))
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=60)

    def run(code: str) -> float:
        started = time.perf_counter()
        client.execute_interactive(code, timeout=120, output_hook=lambda message: None)
        took = time.perf_counter() - started
        # what is written in the background does not belong to the next one
        until(lambda: not list((top / f"store{mib}" / "dmtcp").glob("tmp-*")))
        return took

    try:
        run(f"{ARRAY}data = bytearray(os.urandom(1 << 20)) * {mib}")
        made = [run("%checkpoint") for _ in range(ROUNDS)]
        back = [run("%restore -1") for _ in range(3)]
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    print(
        f"{mib:5} MiB  kernel      %checkpoint {statistics.median(made):6.3f} s  "
        f"%restore {statistics.median(back):6.3f} s"
    )


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="tt-bench-", ignore_cleanup_errors=True) as directory:
        top = pathlib.Path(directory)
        for mib in map(int, sys.argv[1:] or ["10", "300"]):
            programs(top, mib)
            kernel(top, mib)


if __name__ == "__main__":
    main()
