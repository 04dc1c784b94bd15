"""A real JupyterHub with two users: each has a server, kernels and timelines of their own.

Needs the package jupyterhub and its proxy (npm: configurable-http-proxy), found on PATH or named by
TT_PROXY.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import nbformat
import pytest
from jupyter_client import BlockingKernelClient

from jupyter_timetravel import Client
from jupyter_timetravel.server.errors import NotAllowed
from tests.conftest import PORTS, ROOT, needs, open_up
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.hub, pytest.mark.slow]

PROXY = os.environ.get("TT_PROXY") or shutil.which("configurable-http-proxy") or ""

CONFIG = """
import os
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_port = {hub_port}
c.JupyterHub.db_url = "sqlite:///{root}/hub.sqlite"
c.JupyterHub.cookie_secret_file = "{root}/cookie"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = "{root}/homes/{{username}}"
c.Spawner.cmd = ["{python}", "-m", "jupyterhub.singleuser", "--allow-root"]
c.Spawner.environment = {{"PYTHONPATH": "{source}", "JUPYTER_PREFER_ENV_PATH": "1"}}
c.Spawner.start_timeout = c.Spawner.http_timeout = 60
c.ConfigurableHTTPProxy.command = ["{proxy}"]
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy_port}"
c.ConfigurableHTTPProxy.pid_file = "{root}/proxy.pid"
c.JupyterHub.services = [{{"name": "tests", "api_token": "{token}"}}]
c.JupyterHub.load_roles = [{{
    "name": "tests", "services": ["tests"],
    "scopes": ["admin:users", "admin:servers", "tokens"],
}}]
"""


@dataclass
class Hub:
    """One that runs."""

    url: str
    root: Path
    token: str
    process: subprocess.Popen[bytes]

    def api(self, method: str, path: str, **options: Any) -> httpx.Response:
        """A request to the hub itself."""
        headers = {"Authorization": f"token {self.token}"}
        return httpx.request(
            method, f"{self.url}/hub/api{path}", headers=headers, timeout=PATIENCE, **options
        )

    def sign_in(self, name: str) -> User:
        """Make a user and start his server, as signing in does."""
        assert self.api("POST", f"/users/{name}").status_code == 201
        made = self.api("POST", f"/users/{name}/tokens", json={})
        user = User(self, name, made.json()["token"])
        user.start()
        return user


@dataclass
class User:
    """One user, with a token as a script of his has."""

    hub: Hub
    name: str
    token: str

    @property
    def url(self) -> str:
        return f"{self.hub.url}/user/{self.name}/"

    @property
    def home(self) -> Path:
        return self.hub.root / "homes" / self.name

    def start(self) -> None:
        """Start the server and wait until it is there."""
        assert self.hub.api("POST", f"/users/{self.name}/server").status_code in (201, 202)
        end = time.monotonic() + PATIENCE
        while (
            not self.hub.api("GET", f"/users/{self.name}")
            .json()["servers"]
            .get("", {})
            .get("ready")
        ):
            assert time.monotonic() < end, (self.hub.root / "log").read_text()[-3000:]
            time.sleep(0.2)

    def stop(self) -> None:
        """What culling idle servers does."""
        assert self.hub.api("DELETE", f"/users/{self.name}/server").status_code in (202, 204)
        end = time.monotonic() + PATIENCE
        while self.hub.api("GET", f"/users/{self.name}").json()["servers"]:
            assert time.monotonic() < end
            time.sleep(0.2)

    def get(self, path: str, token: str | None = None) -> httpx.Response:
        headers = {"Authorization": f"token {token or self.token}"}
        return httpx.get(f"{self.url}{path}", headers=headers, timeout=PATIENCE)

    def open(self, name: str) -> str:
        """Open a notebook; returns its kernel's id."""
        path = self.home / name
        if not path.exists():
            nbformat.write(nbformat.v4.new_notebook(), path)
        answer = httpx.post(
            f"{self.url}api/sessions",
            headers={"Authorization": f"token {self.token}"},
            json={
                "path": name,
                "name": name,
                "type": "notebook",
                "kernel": {"name": "python3-timetravel"},
            },
            timeout=PATIENCE,
        )
        assert answer.status_code == 201, answer.text
        return str(answer.json()["kernel"]["id"])

    def run(self, kernel: str, code: str) -> str:
        """Run a cell; what it prints."""
        file = self.home / ".local/share/jupyter/runtime" / f"kernel-{kernel}.json"
        client = BlockingKernelClient(connection_file=str(file))
        client.load_connection_file()
        client.start_channels(hb=False)
        out: list[str] = []
        try:
            client.wait_for_ready(timeout=PATIENCE)
            reply = client.execute_interactive(
                code,
                timeout=PATIENCE,
                output_hook=lambda m: out.append(m["content"].get("text", "")),
            )
        finally:
            client.stop_channels()
        assert reply["content"]["status"] == "ok", reply["content"]
        return "".join(out).rstrip("\n")

    def client(self, kernel: str, token: str | None = None) -> Client:
        return Client.at(self.url, token=token or self.token, kernel=kernel, timeout=PATIENCE)


@contextmanager
def running(root: Path, more: str = "") -> Iterator[Hub]:
    """A hub whose files are in a directory. more: further lines of its configuration."""
    port, hub_port, proxy_port = (next(PORTS) for _ in range(3))
    token = secrets.token_hex(16)
    (root / "homes").mkdir()
    (root / "config.py").write_text(
        CONFIG.format(
            root=root,
            port=port,
            hub_port=hub_port,
            proxy_port=proxy_port,
            python=sys.executable,
            proxy=PROXY,
            source=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            token=token,
        )
        + more
    )
    env = {**os.environ, "CONFIGPROXY_AUTH_TOKEN": secrets.token_hex(16)}
    for name in ("JUPYTER_TIMETRAVEL_STORE", "JUPYTER_TIMETRAVEL_KEYS", "JPY_SESSION_NAME"):
        env.pop(name, None)
    with (root / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterhub", "-f", str(root / "config.py")],
            cwd=root,
            env=env,
            stdout=log,
            stderr=log,
        )
    hub = Hub(f"http://127.0.0.1:{port}", root, token, process)
    try:
        end = time.monotonic() + PATIENCE
        while True:
            assert process.poll() is None and time.monotonic() < end, (root / "log").read_text()
            try:
                if hub.api("GET", "/").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        yield hub
    finally:
        process.terminate()  # ends the servers and the proxy too
        process.wait(timeout=PATIENCE)
        open_up(root / "homes")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    needs("JupyterHub", find_spec("jupyterhub") is not None)
    needs("JupyterHub's proxy: configurable-http-proxy, or TT_PROXY", bool(PROXY))
    with running(tmp_path_factory.mktemp("hub")) as made:
        yield made


def test_two_users_see_their_own_timelines_only(hub: Hub) -> None:
    one, two = hub.sign_in("one"), hub.sign_in("two")
    kernels = {user.name: user.open("a.ipynb") for user in (one, two)}
    for user in (one, two):
        with user.client(kernels[user.name]) as client:
            made = client.checkpoint(f"of {user.name}", label=user.name)
            assert client.get(user.name).number == made.number
    for user, other in ((one, two), (two, one)):
        told = user.get("api/timetravel/sessions").json()
        assert [s["notebook"] for s in told["sessions"]] == ["a.ipynb"]
        labels = {c.label for c in user.client(kernels[user.name]).list()}
        assert user.name in labels and other.name not in labels
        assert user.get("api/timetravel/sessions", other.token).status_code == 403
        with pytest.raises(NotAllowed), user.client(kernels[user.name], other.token) as client:
            client.list()


def kept(client: Client, label: str) -> None:
    """Wait until a checkpoint's variables are on the disk."""
    end = time.monotonic() + PATIENCE
    while not any(c.kind == "namespace" and c.state == "ready" for c in client.get(label).captures):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_culled_server_resumes(hub: Hub) -> None:
    user = hub.sign_in("three")
    kernel = user.open("b.ipynb")
    assert user.run(kernel, "x = 41") == ""
    with user.client(kernel) as client:
        client.checkpoint("kept", label="kept")
        kept(client, "kept")
    user.stop()
    user.start()
    kernel = user.open("b.ipynb")
    with user.client(kernel) as client:
        assert client.restore("kept").checkpoint.label == "kept"
    assert user.run(kernel, "print(x + 1)").splitlines()[-1] == "42"
