"""A JupyterHub that spawns each user's server in a container, as docs/hub.md configures it.

TT_HUB_IMAGE names an image with this package and jupyterhub in which HOME belongs to who runs it;
TT_HUB_ADDRESS is how containers reach this machine (the address of Docker's bridge).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import httpx
import nbformat
import pytest

from tests.conftest import ROOT, needs
from tests.hub.test_hub import PROXY, Hub, User, running
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.hub, pytest.mark.slow, pytest.mark.docker, pytest.mark.timeout(400)]

IMAGE = os.environ.get("TT_HUB_IMAGE", "")
ADDRESS = os.environ.get("TT_HUB_ADDRESS", "172.17.0.1")
MORE = """
c.DockerSpawner.image = {image!r}
c.DockerSpawner.remove = True
c.DockerSpawner.use_internal_ip = True
c.DockerSpawner.prefix = "tt-test-{mark}"
c.DockerSpawner.cmd = ["jupyterhub-singleuser"]
c.DockerSpawner.notebook_dir = "/home/jovyan"
c.DockerSpawner.volumes = {{"tt-test-{mark}-home-{{username}}": "/home/jovyan"}}
c.DockerSpawner.network_name = "bridge"
c.Spawner.environment = {{}}
c.JupyterHub.hub_ip = "0.0.0.0"
c.JupyterHub.hub_connect_ip = {address!r}
"""
RUN = """
import sys
from jupyter_client import BlockingKernelClient
from jupyter_core.paths import jupyter_runtime_dir
client = BlockingKernelClient(connection_file=f"{jupyter_runtime_dir()}/kernel-{sys.argv[1]}.json")
client.load_connection_file()
client.start_channels(hb=False)
client.wait_for_ready(timeout=60)
reply = client.execute_interactive(sys.argv[2], timeout=60)
sys.exit(reply["content"]["status"] != "ok")
"""


def of_the_page() -> str:
    """The configuration as the page has it."""
    [block] = re.findall(
        r"## DockerSpawner.*?```python\n(.*?)```", (ROOT / "docs/hub.md").read_text(), re.DOTALL
    )
    return str(block)


@pytest.fixture(scope="module")
def docker() -> Any:
    if not IMAGE:
        pytest.skip("TT_HUB_IMAGE names no image with jupyterhub")
    return pytest.importorskip("docker").from_env()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, docker: Any) -> Iterator[Hub]:
    needs("DockerSpawner", find_spec("dockerspawner") is not None)
    needs("JupyterHub's proxy: configurable-http-proxy, or TT_PROXY", bool(PROXY))
    mark = str(os.getpid())
    settings = MORE.format(image=IMAGE, address=ADDRESS, mark=mark)
    try:
        with running(tmp_path_factory.mktemp("hub"), f"{of_the_page()}\n{settings}") as made:
            yield made
    finally:
        for left in docker.containers.list(all=True, filters={"name": f"tt-test-{mark}"}):
            left.remove(force=True)
        for volume in docker.volumes.list(filters={"name": f"tt-test-{mark}"}):
            volume.remove()


def opened(user: User, name: str) -> str:
    """Open a notebook through the server; returns its kernel's id."""
    headers = {"Authorization": f"token {user.token}"}
    path = f"{user.url}api/contents/{name}"
    if httpx.get(path, headers=headers, timeout=PATIENCE).status_code == 404:
        document = nbformat.v4.new_notebook()
        made = httpx.put(
            path, headers=headers, json={"type": "notebook", "content": document}, timeout=PATIENCE
        )
        assert made.status_code == 201, made.text
    kernel = {"name": "python3-timetravel"}
    answer = httpx.post(
        f"{user.url}api/sessions",
        headers=headers,
        json={"path": name, "name": name, "type": "notebook", "kernel": kernel},
        timeout=PATIENCE,
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["kernel"]["id"])


def ran(docker: Any, user: User, kernel: str, code: str) -> str:
    """Run a cell from within the user's container; what it prints."""
    [box] = [c for c in docker.containers.list() if c.name.endswith(f"-{user.name}")]
    status, out = box.exec_run(["python", "-c", RUN, kernel, code])
    assert status == 0, out.decode()
    return str(out.decode()).rstrip("\n")


def waited(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_two_users_and_a_culled_server(hub: Hub, docker: Any) -> None:
    users = [hub.sign_in(name) for name in ("one", "two")]
    packages = (
        "import glob, os, sys; here = glob.glob(sys.prefix + '/lib/python3*/site-packages')[0]"
    )
    for user in users:
        kernel = opened(user, "a.ipynb")
        ran(docker, user, kernel, f"{packages}\nx = [{user.name!r}]; open('f', 'w').write('1')")
        with user.client(kernel) as client:
            client.checkpoint("kept", label=f"of-{user.name}")
        ran(docker, user, kernel, "import shutil; x.clear(); shutil.rmtree(here + '/dill')")
        with user.client(kernel) as client:
            client.restore(f"of-{user.name}")
            assert {c.label for c in client.list()} & {"of-one", "of-two"} == {f"of-{user.name}"}
        look = "print(x, os.path.exists(here + '/dill'), os.getuid())"
        assert ran(docker, user, kernel, look).startswith(f"[{user.name!r}] True ")
        told = user.get("api/timetravel/sessions").json()
        assert [s["notebook"] for s in told["sessions"]] == ["a.ipynb"]
    one, two = users
    assert one.get("api/timetravel/sessions", two.token).status_code == 403
    with one.client(opened(one, "a.ipynb")) as client:
        waited(
            lambda: any(
                c.kind == "namespace" and c.state == "ready" for c in client.get("of-one").captures
            )
        )
    one.stop()
    # removed by the spawner after the hub has said that the server is gone
    mine = {"all": True, "filters": {"name": "-one$"}, "ignore_removed": True}
    waited(lambda: not docker.containers.list(**mine))
    one.start()
    kernel = opened(one, "a.ipynb")
    ran(docker, one, kernel, "%timetravel resume")
    said = ran(docker, one, kernel, "print(x, open('f').read())")
    # a new container may differ from the last, which the first cell says then
    assert said.splitlines()[-1] == "['one'] 1", said
