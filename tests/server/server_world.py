"""A Jupyter server as a process of its own, its kernels, and who speaks to it over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import nbformat
import pytest
from jupyter_client import BlockingKernelClient
from jupyter_client.session import Session
from websocket import WebSocket, create_connection

from tests.conftest import ROOT, open_up
from tests.servers import address
from tests.waiting import PATIENCE

BASE = "/user/name/"
"""As a hub gives it."""


@dataclass
class Kernel:
    """A notebook's kernel on the server."""

    id: str
    path: str
    client: BlockingKernelClient

    def run(self, code: str) -> str:
        """Run a cell to its end; what it printed."""
        out: list[str] = []

        def take(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                out.append(message["content"]["text"])

        reply = self.client.execute_interactive(code, timeout=PATIENCE, output_hook=take)
        assert reply["content"]["status"] == "ok", reply["content"]
        return "".join(out).rstrip("\n")

    def wait(self) -> None:
        """Until it answers, and what it publishes is received."""
        asked = set()
        for _ in range(int(PATIENCE / 0.25)):
            asked.add(self.client.kernel_info())
            with contextlib.suppress(queue.Empty):
                while not _answers(self.client.get_iopub_msg(timeout=0.25), *asked):
                    pass
                while not _answers(self.client.get_shell_msg(timeout=PATIENCE), *asked):
                    pass
                return
        pytest.fail("the kernel does not answer")

    @property
    def pid(self) -> int:
        """Of the supervisor."""
        message = self.client.session.msg("usage_request", {})
        self.client.control_channel.send(message)
        while True:
            reply = self.client.get_control_msg(timeout=PATIENCE)
            if _answers(reply, message["header"]["msg_id"]):
                return int(reply["content"]["pid"])

    def begin(self, code: str) -> None:
        """Send a cell, and wait until it runs; not for its end."""
        asked = self.client.execute(code)
        while True:
            message = self.client.get_iopub_msg(timeout=PATIENCE)
            if message["msg_type"] == "execute_input" and _answers(message, asked):
                return


def _answers(message: dict[str, Any], *asked: str) -> bool:
    return message["parent_header"].get("msg_id") in asked


@dataclass
class Server:
    """One that runs."""

    url: str
    root: Path
    log: Path
    env: dict[str, str]
    process: subprocess.Popen[bytes]
    kernels: list[Kernel] = field(default_factory=list)

    @property
    def notebooks(self) -> Path:
        return self.root / "notebooks"

    @property
    def api(self) -> str:
        return f"{self.url}api/timetravel"

    def as_user(self, token: str | None = "owner") -> httpx.Client:
        """A client of the interface."""
        headers = {"Authorization": f"token {token}"} if token else {}
        return httpx.Client(base_url=self.api, headers=headers, timeout=PATIENCE)

    def start(self, path: str, kernel: str = "python3-timetravel") -> Kernel:
        """Open a notebook with a kernel, as a front end does."""
        target = self.notebooks / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            cell = nbformat.v4.new_code_cell("x = 1")
            nbformat.write(nbformat.v4.new_notebook(cells=[cell]), target)
        with self.as_user() as http:
            model: dict[str, Any] = {"path": path, "type": "notebook", "name": target.name}
            model["kernel"] = {"name": kernel}
            answer = http.post(f"{self.url}api/sessions", json=model)
            assert answer.status_code == 201, answer.text
            id = answer.json()["kernel"]["id"]
        client = BlockingKernelClient(
            connection_file=str(self.root / "runtime" / f"kernel-{id}.json")
        )
        client.load_connection_file()
        client.start_channels(hb=False)
        made = Kernel(id, path, client)
        made.wait()
        self.kernels.append(made)
        return made

    def restart(self, kernel: Kernel) -> None:
        """As the button does: another process, at the same address."""
        with self.as_user() as http:
            answer = http.post(f"{self.url}api/kernels/{kernel.id}/restart")
            assert answer.status_code == 200, answer.text
        kernel.wait()

    def end(self, kernel: Kernel) -> None:
        """Shut it down; what it was to write is on the disk then."""
        kernel.client.stop_channels()
        self.kernels.remove(kernel)
        with self.as_user() as http:
            assert http.delete(f"{self.url}api/kernels/{kernel.id}").status_code == 204


class Page:
    """What a page in a browser does: all of a kernel's channels over the server's websocket."""

    def __init__(self, server: Server, kernel: str) -> None:
        url = server.url.replace("http", "ws", 1) + f"api/kernels/{kernel}/channels"
        self._socket: WebSocket = create_connection(
            url, header=["Authorization: token owner"], timeout=PATIENCE
        )
        self._session = Session()

    def close(self) -> None:
        self._socket.close()

    def run(self, code: str) -> str:
        """Run a cell; what it printed."""
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        asked = self._send("shell", "execute_request", content)
        out, ends = "", set()
        while not ends >= {"execute_reply", "idle"}:
            message = self._next()
            if message["parent_header"].get("msg_id") != asked:
                continue
            if message["msg_type"] == "stream":
                out += message["content"]["text"]
            assert message["msg_type"] != "error", message["content"]
            ends.add(message["content"].get("execution_state") or message["msg_type"])
        return out

    def ask(self, content: dict[str, Any]) -> Any:
        """The result of a command of time travel."""
        asked = self._send("control", "timetravel_request", content)
        while True:
            reply = self._next()
            if reply["parent_header"].get("msg_id") == asked and reply["channel"] == "control":
                assert reply["content"]["status"] == "ok", reply["content"]
                return reply["content"]["result"]

    def _send(self, channel: str, msg_type: str, content: dict[str, Any]) -> str:
        message = self._session.msg(msg_type, content)
        self._socket.send(json.dumps({**message, "channel": channel}, default=str))
        return str(message["header"]["msg_id"])

    def _next(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._socket.recv())
        return message


@contextmanager
def running(root: Path, *arguments: str, **more: str) -> Iterator[Server]:
    """A server whose files, store and keys are below a directory. more: of its environment."""
    for name in ("notebooks", "home"):
        (root / name).mkdir(exist_ok=True, parents=True)
    (root / "runtime").mkdir(mode=0o700, exist_ok=True)
    paths = [str(ROOT), str(Path(__file__).parent)]
    env = {
        **os.environ,
        "HOME": str(root / "home"),
        "IPYTHONDIR": str(root / "ipython"),
        "JUPYTER_CONFIG_DIR": str(root / "config"),
        "JUPYTER_RUNTIME_DIR": str(root / "runtime"),
        "JUPYTER_TIMETRAVEL_STORE": str(root / "store"),
        "JUPYTER_TIMETRAVEL_KEYS": str(root / "keys"),
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
        **more,
    }
    env.pop("JPY_SESSION_NAME", None)
    command = [
        *(sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root"),
        *("--ServerApp.port=0", f"--ServerApp.base_url={BASE}"),
        # alone: what else is installed here would only make the start slow
        "--ServerApp.jpserver_extensions={'jupyter_timetravel': True, 'jupyterlab': False, "
        "'notebook': False, 'jupyter_lsp': False, 'jupyter_server_terminals': False, "
        "'notebook_shim': False}",
        "--ServerApp.allow_unauthenticated_access=False",
        "--ServerApp.identity_provider_class=house_rules.Tokens",
        "--ServerApp.authorizer_class=house_rules.Rules",
        # a slow end is not cut short by a kill
        f"--KernelManager.shutdown_wait_time={PATIENCE}",
        *arguments,
    ]
    log = root / "server.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=root / "notebooks", env=env, stdout=file, stderr=file
        )
    server: Server | None = None
    try:
        server = Server(
            address(process, Path(env["JUPYTER_RUNTIME_DIR"]), log), root, log, env, process
        )
        yield server
    finally:
        for kernel in server.kernels if server is not None else ():
            kernel.client.stop_channels()
        process.terminate()
        process.wait(timeout=60)
        if (root / "store").exists():
            open_up(root / "store")


def messages(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    """Server-sent events."""
    for line in answer.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line[6:])
