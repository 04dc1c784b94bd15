"""Kernels in real containers. TT_CONTAINER_IMAGE names an image made with containers/Dockerfile for
the user who runs the tests (`.ci/run` makes one); Docker must be reachable."""

from __future__ import annotations

import contextlib
import io
import json
import os
import uuid
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.provisioning import KernelProvisionerFactory

from jupyter_timetravel import cli
from jupyter_timetravel.containers.daemon import LABEL, Daemon
from jupyter_timetravel.install import DOCKER_PROVISIONER, docker_kernelspec
from tests.conftest import Notebook, needs, open_up
from tests.server.server_world import Server, running
from tests.waiting import PATIENCE, until

IMAGE = os.environ.get("TT_CONTAINER_IMAGE", "")
START = Callable[..., Notebook]
PACKAGES = (
    "import os, sys, json, glob; here = glob.glob(sys.prefix + '/lib/python3*/site-packages')[0]"
)
"""A cell that finds where packages are."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.docker)


@pytest.fixture(scope="session")
def docker() -> Any:
    """The daemon, spoken to without our own code."""
    library = pytest.importorskip("docker")
    try:
        client = library.from_env()
        client.ping()
    except Exception as error:
        needs(f"a Docker daemon ({error})", False)
    return client


@pytest.fixture(scope="session")
def image(docker: Any) -> str:
    """An image with this package."""
    needs("an image with this package: set TT_CONTAINER_IMAGE", bool(IMAGE))
    return IMAGE


class Manager(KernelManager):
    """Starts the kernel as a kernelspec of `jupyter timetravel install --docker` does."""

    settings: dict[str, Any] = {}  # noqa: RUF012

    @property
    def kernel_spec(self) -> KernelSpec:
        spec = docker_kernelspec("unused")
        spec["metadata"]["kernel_provisioner"]["config"] = self.settings
        return KernelSpec(**spec)


def declare() -> None:
    """Make the provisioner known where this checkout is not installed as it is now."""
    group = "jupyter_client.kernel_provisioners"
    if DOCKER_PROVISIONER not in entry_points(group=group).names:
        KernelProvisionerFactory.instance().provisioners[DOCKER_PROVISIONER] = EntryPoint(
            DOCKER_PROVISIONER,
            "jupyter_timetravel.containers.provisioner:DockerProvisioner",
            group,
        )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of our own for everything that Jupyter keeps."""
    declare()
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "r"))
    for name in ("JUPYTER_TIMETRAVEL_STORE", "JUPYTER_TIMETRAVEL_KEYS", "JPY_SESSION_NAME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "work").mkdir()
    yield tmp_path
    open_up(tmp_path / "data")


@pytest.fixture
def start(place: Path, image: str, docker: Any) -> Iterator[START]:
    """Start kernels: start(option=…, env=…). At the end no container of theirs may be left."""
    started: list[Notebook] = []

    def begin(env: dict[str, str] | None = None, **settings: Any) -> Notebook:
        manager = Manager()
        manager.settings = {"image": image, **settings}
        manager.shutdown_wait_time = PATIENCE  # a slow end is not cut short by a kill
        # with a connection file where servers put theirs
        manager.connection_file = str(place / "r" / f"kernel-{uuid.uuid4()}.json")
        work = place / "work"
        manager.start_kernel(cwd=str(work), env={**os.environ, **(env or {})})
        client = manager.blocking_client()
        client.start_channels()
        notebook = Notebook(manager, client, work)
        started.append(notebook)
        client.wait_for_ready(timeout=PATIENCE)
        return notebook

    yield begin
    for notebook in started:
        notebook.client.stop_channels()
        with contextlib.suppress(Exception):
            notebook.manager.shutdown_kernel(now=not notebook.manager.is_alive())
    assert ours(docker, place) == []


@pytest.fixture
def install(
    place: Path, image: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Install a kernelspec as a user does, with some options in its metadata: install(option=…).

    Its image is the tests' own unless another one is given. Returns the name.
    """
    monkeypatch.setenv("HOME", str(place))

    def write(name: str = "boxed", **settings: Any) -> str:
        words = ["install", "--user", "--docker", settings.pop("image", image), "--name", name]
        assert cli.main([*words, "--json"]) == 0
        path = Path(json.loads(capsys.readouterr().out)["path"], "kernel.json")
        spec = json.loads(path.read_text())
        spec["metadata"]["kernel_provisioner"]["config"].update(settings)
        path.write_text(json.dumps(spec))
        return name

    return write


@pytest.fixture
def server(place: Path, docker: Any) -> Iterator[Server]:
    """A real Jupyter server, whose kernels are in containers where a kernelspec says so.

    At its end no container of theirs may be left.
    """
    root = place / "server"
    root.mkdir()
    with running(root) as one:
        yield one
        for kernel in tuple(one.kernels):
            one.end(kernel)
        assert ours(docker, place) == []


def ours(docker: Any, place: Path) -> list[Any]:
    """The containers of notebooks below a directory. (Where its path is too long for a socket, the
    runtime directory lies elsewhere.)"""
    # some of other runs' may go away meanwhile
    mine = {"label": f"{LABEL}={os.getuid()}"}
    found = docker.containers.list(all=True, filters=mine, ignore_removed=True)
    return [c for c in found if c.labels.get(f"{LABEL}.directory", "").startswith(str(place))]


def revive(notebook: Notebook) -> None:
    """Start the kernel again after its container went away, as Jupyter does."""
    until(lambda: not notebook.manager.is_alive(), "the container's end is noticed")
    notebook.manager.restart_kernel(now=True)
    notebook.client.wait_for_ready(timeout=PATIENCE)


def of_a_notebook(place: Path) -> dict[str, str]:
    """What a server tells the kernel of a notebook."""
    document = place / "work" / "a.ipynb"
    document.write_text("{}")
    return {"JPY_SESSION_NAME": str(document)}


def container(docker: Any, place: Path) -> Any:
    """The one that runs."""
    [found] = [c for c in ours(docker, place) if c.status == "running"]
    return found


@contextlib.contextmanager
def built(docker: Any, *lines: str) -> Iterator[str]:
    """The name of an image of the given lines of a Dockerfile, for the length of the block."""
    name = f"timetravel-test-{uuid.uuid4().hex[:12]}"
    file = io.BytesIO("\n".join(lines).encode())
    docker.images.build(fileobj=file, tag=name, rm=True, network_mode="none")
    try:
        yield name
    finally:
        docker.images.remove(name, force=True)


def durable(notebook: Notebook, label: str) -> bool:
    """Whether a checkpoint's variables and process are on the disk."""
    captures = notebook.command("get", checkpoint=label)["checkpoint"]["captures"]
    states = {(c["kind"], c["engine"]): c["state"] for c in captures}
    wanted = (("namespace", "dill"), ("process", "image"))
    for key in wanted:
        assert states.get(key) != "failed", captures
    return all(states.get(key) == "ready" for key in wanted)


@pytest.fixture
def daemon(docker: Any) -> Iterator[Daemon]:
    """The daemon, by our own code."""
    made = Daemon()
    yield made
    made.close()
