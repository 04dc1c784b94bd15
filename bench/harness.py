"""Start kernels and time cells as a client sees them. Used by the benchmarks in this folder.

Every time is in seconds, measured from sending a request to having read the answer, with the same
client code for each kernel, so that what the client costs cancels out in a ratio.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, NamedTuple

import zmq
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

MODULES = {
    "stock": "ipykernel_launcher",
    "ours": "kernel_runtime",
    "forking": "ipykernel_launcher",
    "kishu": "ipykernel_launcher",
}
TIMEOUT_S = 180


class Times(NamedTuple):
    """What one cell took, and what it printed."""

    reply: float
    idle: float
    text: str
    messages: int  # on IOPub, from busy to idle


class Spread(NamedTuple):
    """A median and its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high)

    def ms(self) -> str:
        low, high = 1000 * self.low, 1000 * self.high
        return f"{1000 * self.median:.2f} ms ({low:.2f} to {high:.2f})"


class BenchError(RuntimeError):
    """A cell did not do what the benchmark needs: its figures would mean nothing."""


class Kernel:
    """A running kernel and a client for it."""

    settings: ClassVar[Sequence[str]] = ()  # arguments of the supervisor
    pythons: ClassVar[dict[str, str]] = {}  # by kind; the others run in this interpreter

    def __init__(self, kind: str, folder: Path) -> None:
        python = self.pythons.get(kind, sys.executable)
        argv = [python, "-m", MODULES[kind], "-f", "{connection_file}"]
        if kind == "ours":
            argv += self.settings
        # in a folder of its own: what is in the kernel's is captured
        connection = Path(folder.parent, f"kernel-{folder.name}.json")
        self.manager = KernelManager(connection_file=str(connection))
        self.manager._kernel_spec = KernelSpec(
            argv=argv, display_name=kind, language="python", interrupt_mode="message"
        )
        log = folder.with_suffix(".log")
        with log.open("wb") as stderr:
            self.manager.start_kernel(cwd=str(folder), stderr=stderr)
        self.client = self.manager.client()
        self.client.start_channels()
        try:
            self.client.wait_for_ready(timeout=TIMEOUT_S)
        except RuntimeError as error:
            raise BenchError(f"the {kind} kernel did not start: {log.read_text()}") from error

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def run(self, code: str, *, check: bool = True) -> Times:
        """Execute a cell; wait for its reply, then for the kernel to be idle."""
        started = time.perf_counter()
        sent = self.client.execute(code, store_history=True)
        return self.collect(sent, started, code, check=check)

    def collect(self, sent: str, started: float, code: str = "", *, check: bool = True) -> Times:
        """Wait for the answers to a request that was sent at ``started``.

        Both channels are read as messages come: a client that reads one after the other lets the
        other's queue overflow in a storm.
        """
        shell, iopub = self.client.shell_channel, self.client.iopub_channel
        poller = zmq.Poller()
        poller.register(shell.socket, zmq.POLLIN)
        poller.register(iopub.socket, zmq.POLLIN)
        replied = idle = 0.0
        text, messages = [], 0
        while not (replied and idle):
            ready = dict(poller.poll(1000 * TIMEOUT_S))
            if not ready:
                missing = "become idle" if replied else "reply"
                raise BenchError(f"{code!r}: the kernel did not {missing}")
            if shell.socket in ready:
                reply = shell.get_msg(timeout=0)
                if reply["parent_header"].get("msg_id") == sent:
                    replied = time.perf_counter()
                    if check and reply["content"]["status"] != "ok":
                        raise BenchError(f"{code!r}: {reply['content'].get('evalue')}")
            while iopub.socket.poll(0):
                message = iopub.get_msg(timeout=0)
                if message["parent_header"].get("msg_id") != sent:
                    continue
                messages += 1
                content = message["content"]
                if message["msg_type"] == "stream":
                    text.append(content["text"])
                if message["msg_type"] == "status" and content["execution_state"] == "idle":
                    idle = time.perf_counter()
        return Times(replied - started, idle - started, "".join(text), messages)

    def number(self, code: str) -> float:
        """Run a cell that prints one number last, and return it."""
        return float(self.run(code).text.split()[-1])


@contextmanager
def kernels(*kinds: str) -> Iterator[list[Kernel]]:
    """Start kernels in empty folders of their own; end them and remove the folders."""
    with tempfile.TemporaryDirectory(prefix="timetravel-bench-") as root:
        started: list[Kernel] = []
        try:
            for number, kind in enumerate(kinds):
                folder = Path(root, f"{number}-{kind}")
                folder.mkdir()
                started.append(Kernel(kind, folder))
            yield started
        finally:
            for kernel in started:
                kernel.close()


@contextmanager
def notebook() -> Iterator[Path]:
    """A notebook for the kernels that are started meanwhile: without one ours writes only what is
    asked for, as nobody could find the rest again."""
    path = Path(os.environ["JUPYTER_DATA_DIR"], "n.ipynb")
    path.write_text("{}")
    os.environ["JPY_SESSION_NAME"] = str(path)
    try:
        yield path
    finally:
        del os.environ["JPY_SESSION_NAME"]


@contextmanager
def private_home() -> Iterator[None]:
    """Keep the user's history, configuration and store out of the figures, and the reverse."""
    names = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="timetravel-bench-home-") as home:
        for name in names:
            folder = Path(home, name.lower())
            folder.mkdir(mode=0o700)
            os.environ[name] = str(folder)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
