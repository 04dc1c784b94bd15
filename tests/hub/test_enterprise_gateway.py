"""A real Jupyter Enterprise Gateway, with the configuration of docs/hub.md.

It wants an older jupyter_client, so it lives in an environment of its own, whose command
TT_ENTERPRISE_GATEWAY names (python3 -m venv …; pip install jupyter_enterprise_gateway).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import nbformat
import pytest

from jupyter_timetravel import Client
from tests.conftest import PORTS, ROOT, open_up
from tests.server.server_world import Server, running
from tests.server.test_gateway import Page
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.hub, pytest.mark.slow]

COMMAND = os.environ.get("TT_ENTERPRISE_GATEWAY", "")
PAGE = ROOT / "docs" / "hub.md"


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[str]:
    """Its URL. Its kernels run on this machine, and see the notebooks at the same paths."""
    if not COMMAND:
        pytest.skip("TT_ENTERPRISE_GATEWAY names no Jupyter Enterprise Gateway")
    page = PAGE.read_text().partition("## Jupyter Enterprise Gateway")[2]
    [block] = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    [options] = re.findall(r"--EnterpriseGatewayApp.client_envs=\S+", page)
    assert "/opt/kernels/bin/python" in block
    spec = json.loads(block.replace("/opt/kernels/bin/python", sys.executable))
    folder = tmp_path / "gateway" / "kernels" / "python3-timetravel"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(spec))
    port = next(PORTS)
    env = {
        **os.environ,
        "HOME": str(tmp_path),
        "JUPYTER_PATH": str(tmp_path / "gateway"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
        "JUPYTER_TIMETRAVEL_STORE": str(tmp_path / "store"),
        "JUPYTER_TIMETRAVEL_KEYS": str(tmp_path / "keys"),
        "PYTHONPATH": str(ROOT),
    }
    words = [COMMAND, f"--port={port}", "--ip=127.0.0.1", *shlex.split(options)]
    url = f"http://127.0.0.1:{port}/"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*words, "--EnterpriseGatewayApp.auth_token=owner"],
            cwd=tmp_path, env=env, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        end = time.monotonic() + PATIENCE
        while True:
            assert process.poll() is None and time.monotonic() < end, log_of(tmp_path)
            try:
                specs = httpx.get(f"{url}api/kernelspecs", headers=TOKEN, timeout=PATIENCE)
                break
            except httpx.TransportError:
                time.sleep(0.2)
        assert "python3-timetravel" in specs.json()["kernelspecs"], specs.text
        yield url
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE)
        open_up(tmp_path)


TOKEN = {"Authorization": "token owner"}


def log_of(tmp_path: Path) -> str:
    return (tmp_path / "log").read_text()[-6000:]


def opened(front: Server, path: Path) -> str:
    """Open a notebook; its kernel's id."""
    with front.as_user() as http:
        model: dict[str, Any] = {"path": path.name, "type": "notebook", "name": path.name}
        model["kernel"] = {"name": "python3-timetravel"}
        made = http.post(f"{front.url}api/sessions", json=model)
        assert made.status_code == 201, made.text + log_of(front.root.parent)
        return str(made.json()["kernel"]["id"])


def test_a_notebook_behind_an_enterprise_gateway(gateway: str, tmp_path: Path) -> None:
    front_root = tmp_path / "front"
    front_root.mkdir()
    options = (
        f"--GatewayClient.url={gateway}",
        "--GatewayClient.auth_token=owner",
        "--GatewayClient.request_timeout=60",
        "--GatewayClient.allowed_envs=JPY_SESSION_NAME",
    )
    with running(front_root, *options) as front:
        path = front.notebooks / "a.ipynb"
        path.parent.mkdir(exist_ok=True)
        nbformat.write(nbformat.v4.new_notebook(), path)
        kernel = opened(front, path)
        page = Page(front, kernel)
        page.run("x = 1; open('f', 'w').write('one')")
        assert page.run("import os; print(os.getcwd())").strip() == str(path.parent)
        with Client.at(front.url, token="owner", kernel=kernel, timeout=PATIENCE) as client:
            client.checkpoint("behind it", label="here")
            page.run("x = 2; open('f', 'w').write('two')")
            assert client.get("here").variables["x"]["value"] == "1"
            assert client.restore("here").safety is not None
            assert page.run("print(x, open('f').read())") == "1 one\n"
            asked = {"version": 1, "command": "list", "args": {}}
            assert page.ask(asked)["head"], "the sidebar's way"
            end = time.monotonic() + PATIENCE
            while not any(
                c.kind == "namespace" and c.state == "ready" for c in client.get("here").captures
            ):
                assert time.monotonic() < end
                time.sleep(0.1)
        page.close()
        with front.as_user() as http:
            assert http.delete(f"{front.url}api/kernels/{kernel}").status_code == 204
            for session in http.get(f"{front.url}api/sessions").json():
                http.delete(f"{front.url}api/sessions/{session['id']}")
        kernel = opened(front, path)
        page = Page(front, kernel)
        with Client.at(front.url, token="owner", kernel=kernel, timeout=PATIENCE) as client:
            assert client.restore("here").checkpoint.label == "here", "its timeline is found again"
        assert page.run("print(x)").endswith("1\n")
        page.close()
        with front.as_user() as http:
            http.delete(f"{front.url}api/kernels/{kernel}")
