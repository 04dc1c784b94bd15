"""Fixtures that every suite may use: real kernels, driven as a front end drives them.

``TT_MUST_WORK=1`` turns a skip for a missing ability into a failure (continuous integration).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from jupyter_client import BlockingKernelClient, KernelManager
from jupyter_client.kernelspec import KernelSpec

from tests.waiting import PATIENCE

# How fast a loaded machine is says nothing about the code.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "kernel_runtime" / "native" / "libtimetravel.so"

UNTIL_GO = (
    "while not __import__('os').path.exists('go'): __import__('time').sleep(0.01)\n"
    "__import__('os').remove('go')\n"
)
"""For the start of a cell that `Notebook.send_queue` sends."""


@dataclass
class Cell:
    """What came of one execute request."""

    msg_id: str
    reply: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def status(self) -> str:
        return str(self.reply.get("status"))

    @property
    def count(self) -> int:
        return int(self.reply["execution_count"])

    def text(self, name: str = "stdout") -> str:
        """All that was printed."""
        return "".join(
            m["content"]["text"]
            for m in self.messages
            if m["msg_type"] == "stream" and m["content"]["name"] == name
        )

    @property
    def out(self) -> str:
        """What was printed, without the last newline."""
        return self.text().rstrip("\n")

    @property
    def result(self) -> str | None:
        """The plain text of the execute_result."""
        for m in self.messages:
            if m["msg_type"] == "execute_result":
                return str(m["content"]["data"]["text/plain"])
        return None

    @property
    def error(self) -> str:
        """``Name: value`` of the error, or nothing."""
        for m in self.messages:
            if m["msg_type"] == "error":
                return f"{m['content']['ename']}: {m['content']['evalue']}"
        return ""

    def of_type(self, msg_type: str) -> list[dict[str, Any]]:
        """The messages of one type."""
        return [m for m in self.messages if m["msg_type"] == msg_type]


def _own_ports() -> Iterator[int]:
    """Free ports that neither another run of the tests takes nor who asks the system for any.

    jupyter_client chooses a port and lets it go again, and the kernel binds it when it is up: runs
    side by side would choose the same one now and then (the system gives one of 14,000).
    """
    held = socket.socket(socket.AF_UNIX)  # as long as this process lives
    for number in range(40):
        with contextlib.suppress(OSError):
            held.bind(f"\0jupyter-timetravel-tests-{number}")
            break
    else:
        raise RuntimeError("too many runs of the tests at once")
    first = 10_000 + number * 500  # net.ipv4.ip_local_port_range begins at 32768
    for port in itertools.cycle(range(first, first + 500)):
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port


PORTS = _own_ports()


class Manager(KernelManager):
    """Starts the supervisor of this checkout with given arguments, installed or not."""

    prefix: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.cache_ports = False  # of its provisioner's own choice
        self.shutdown_wait_time = PATIENCE  # a slow end is not cut short by a kill
        for channel in ("shell", "iopub", "stdin", "control", "hb"):
            setattr(self, f"{channel}_port", next(PORTS))

    @property
    def kernel_spec(self) -> KernelSpec:
        # the whole suite can be run in another mode: TT_SUPERVISOR="--Supervisor.sandbox=none"
        extra = [*self.arguments, *os.environ.get("TT_SUPERVISOR", "").split()]
        program = [sys.executable, "-m", "kernel_runtime", "-f", "{connection_file}"]
        argv = [*self.prefix, *program, *extra]
        return KernelSpec(argv=argv, language="python", interrupt_mode="message")


class Notebook:
    """A front end: one kernel, one client, cells in order."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient, cwd: Path) -> None:
        self.manager = manager
        self.client = client
        self.cwd = cwd
        self.unclaimed: list[dict[str, Any]] = []

    def send(self, code: str, **options: Any) -> str:
        """Send a cell; do not wait."""
        return str(self.client.execute(code, **options))

    def send_queue(self, first: str, *others: str) -> list[str]:
        """Send cells. When the first has passed UNTIL_GO, the others wait behind it."""
        ids = [self.send(first), *map(self.send, others)]
        self.command("status")  # sent after them, and answered: they are there
        (self.cwd / "go").touch()
        return ids

    def wait(self, msg_id: str, timeout: float = PATIENCE) -> Cell:
        """Collect what belongs to a cell until its idle, then its reply."""
        cell = Cell(msg_id)
        end = time.monotonic() + timeout
        for message in [m for m in self.unclaimed if m["parent_header"].get("msg_id") == msg_id]:
            self.unclaimed.remove(message)
            cell.messages.append(message)
        while all(m["content"].get("execution_state") != "idle" for m in cell.of_type("status")):
            message = self.client.get_iopub_msg(timeout=max(0.01, end - time.monotonic()))
            mine = message["parent_header"].get("msg_id") == msg_id
            (cell.messages if mine else self.unclaimed).append(message)
        while not cell.reply:
            reply = self.client.get_shell_msg(timeout=max(0.01, end - time.monotonic()))
            if reply["parent_header"].get("msg_id") == msg_id:
                cell.reply = reply["content"]
        return cell

    def run(self, code: str, *, timeout: float = PATIENCE, ok: bool = True, **options: Any) -> Cell:
        """Run a cell to its end; by default it must succeed."""
        cell = self.wait(self.send(code, **options), timeout)
        if ok:
            assert cell.status == "ok", cell.error or cell.reply
        return cell

    def cells(self, *codes: str) -> list[Cell]:
        """Run cells in order."""
        return [self.run(code) for code in codes]

    def until_printed(self, msg_id: str, text: str = "") -> None:
        """Wait until a cell itself has printed a text; `wait` finds its messages all the same.

        Its echoed source, or what another cell prints, is not taken for it.
        """

        def printed() -> str:
            mine = [m for m in self.unclaimed if m["parent_header"].get("msg_id") == msg_id]
            return Cell(msg_id, messages=mine).text()

        while not (found := printed()) or text not in found:
            self.unclaimed.append(self.client.get_iopub_msg(timeout=PATIENCE))

    def until_said(self, text: str, before: str = "") -> str:
        """Wait until a text is printed by anything; return all that was. before: known already.

        For what is said in the background, after the cell that it is about has ended.
        """

        def said() -> str:
            streams = [m for m in self.unclaimed if m["msg_type"] == "stream"]
            return before + "".join(m["content"]["text"] for m in streams)

        while text not in (found := said()):
            self.unclaimed.append(self.client.get_iopub_msg(timeout=PATIENCE))
        return found

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for a message on IOPub that is as wanted; those before it are unclaimed."""
        while not (found := [m for m in self.unclaimed if wanted(m)]):
            self.unclaimed.append(self.client.get_iopub_msg(timeout=PATIENCE))
        return found[0]

    def shut_down(self) -> None:
        """End the kernel as a server does; it must end by itself."""
        process = self.manager.provisioner.process
        self.manager.shutdown_kernel()
        assert process.wait(timeout=PATIENCE) == 0

    def interrupt(self) -> None:
        """As the button does; with the reply, what is running has been sent the signal."""
        assert self.control("interrupt_request", {})["status"] == "ok"

    def settle(self, timeout: float = 0.3) -> list[dict[str, Any]]:
        """Return the IOPub messages that still come within a while."""
        found = [*self.unclaimed]
        self.unclaimed.clear()
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self.client.get_iopub_msg(timeout=timeout))
        return found

    def control(self, msg_type: str, content: dict[str, Any], timeout: float = PATIENCE) -> Any:
        """Send a request on the control channel and return its reply's content."""
        message = self.client.session.msg(msg_type, content)
        self.client.control_channel.send(message)
        while True:
            reply = self.client.get_control_msg(timeout=timeout)
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                return reply["content"]

    def command(self, command: str, **args: Any) -> dict[str, Any]:
        """Send a time-travel command; it must succeed."""
        reply = self.control("timetravel_request", {"version": 1, "command": command, "args": args})
        assert reply["status"] == "ok", reply
        result: dict[str, Any] = reply["result"]
        return result

    def refused(self, command: str, **args: Any) -> dict[str, Any]:
        """Send a time-travel command that must be refused; return the reply."""
        reply: dict[str, Any] = self.control(
            "timetravel_request", {"version": 1, "command": command, "args": args}
        )
        assert reply["status"] == "error", reply
        return reply

    def head(self) -> dict[str, Any]:
        """Return the newest checkpoint, once the one that is being made is done."""
        self.run("", silent=True)
        head: dict[str, Any] = self.command("status")["head"]
        return head

    @property
    def pid(self) -> int:
        """The supervisor's pid."""
        return int(self.manager.provisioner.pid)


@contextlib.contextmanager
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Notebook]]:
    """What starts kernels whose store and work are below a directory; they end with the block."""
    store = tmp_path / "store"
    runtime = tmp_path / "r"
    runtime.mkdir(mode=0o700)
    ipython = tmp_path / "ipython"
    monkeypatch.setenv("JUPYTER_TIMETRAVEL_STORE", str(store))
    monkeypatch.setenv("JUPYTER_TIMETRAVEL_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("IPYTHONDIR", str(ipython))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    started: list[Notebook] = []

    def start(
        *arguments: str,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        listed: bool = False,
    ) -> Notebook:
        where = cwd or tmp_path / "work"
        where.mkdir(exist_ok=True)
        manager = Manager()
        if listed:  # with a connection file where servers put theirs
            manager.connection_file = str(runtime / f"kernel-{uuid.uuid4()}.json")
        manager.prefix, manager.arguments = prefix, arguments
        manager.start_kernel(cwd=str(where), env={**os.environ, **(env or {})})
        client = manager.blocking_client()
        client.start_channels()
        notebook = Notebook(manager, client, where)
        started.append(notebook)
        client.wait_for_ready(timeout=PATIENCE)
        return notebook

    yield start
    for notebook in started:
        notebook.client.stop_channels()
        with contextlib.suppress(Exception):
            notebook.manager.shutdown_kernel(now=not notebook.manager.is_alive())
    open_up(store)


@pytest.fixture
def start_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Notebook]]:
    """Start kernels: start_notebook(*supervisor arguments, cwd=…, env=…)."""
    with kernels(tmp_path, monkeypatch) as start:
        yield start


def open_up(top: Path) -> None:
    """Let directories be removed: layers hold some that their owner may not write to.

    A kernel that was not asked to end may still be clearing up there.
    """
    for parent, names, _ in os.walk(top):
        for name in names:
            if not os.path.islink(path := os.path.join(parent, name)):
                with contextlib.suppress(FileNotFoundError):  # a kernel that ends tidies up
                    os.chmod(path, 0o700)


@pytest.fixture
def notebook(start_notebook: Callable[..., Notebook]) -> Notebook:
    """A kernel with the default settings."""
    return start_notebook()


NEED_ROOT = {"play", "small", "mount"}
"""Fixtures of tests/environment and tests/overlay that mount disks or play other users."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs root by the fixtures that it uses."""
    for item in items:
        is_ours = item.path.parent.name in ("environment", "overlay")
        if is_ours and NEED_ROOT.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.root)


@pytest.fixture(autouse=True)
def _umask_stays() -> Iterator[None]:
    """Of this process, in which commands run as they do in a server: all later files have it."""
    before = _umask()
    yield
    assert _umask() == before


def _umask() -> str:
    # umask(2) would set it
    return next(line for line in open("/proc/self/status") if line.startswith("Umask:"))


_TELLS = re.compile(r"[>E] |\S+:\d+:")
"""What of a traceback says where and why, so that all failures of a run fit on one page."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Say what failed at once, in the file that TT_FAILURES names: a long run tells at its end."""
    if report.failed and (path := os.environ.get("TT_FAILURES")):
        with open(path, "a") as file:
            told = [line for line in report.longreprtext.splitlines() if _TELLS.match(line)]
            text = "\n".join(told) or report.longreprtext
            file.write(f"\n--- {report.nodeid} ({report.when})\n{text[-1500:]}\n")


def needs(ability: str, present: bool) -> None:
    """Skip the test by the name of what is missing; fail where it must be there."""
    if present:
        return
    if os.environ.get("TT_MUST_WORK") == "1":
        pytest.fail(f"missing ability: {ability}")
    pytest.skip(f"missing ability: {ability}")


@pytest.fixture
def ability() -> Callable[[str, bool], None]:
    """``ability(name, present)`` skips by name."""
    return needs


@pytest.fixture
def later() -> tuple[str, ...]:
    """What starts a program as on a machine that has been up for a day longer
    (time_namespaces(7))."""
    prefix = ("unshare", "-U", "-c", "-T", "--monotonic", "100000")
    clock = [sys.executable, "-c", "import time; print(time.monotonic())"]
    said = subprocess.run([*prefix, *clock], capture_output=True, text=True, check=False).stdout
    needs("time namespaces, kept by exec", float(said or 0) > time.monotonic() + 90_000)
    return prefix


@pytest.fixture
def small(tmp_path: Path, ability: Any) -> Iterator[Path]:
    """A store on a disk of 80 MiB."""
    where = tmp_path / "store"
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={80 << 20},mode=700", "tmpfs", str(where)]
    ability("mount tmpfs", subprocess.run(command, check=False).returncode == 0)
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)
