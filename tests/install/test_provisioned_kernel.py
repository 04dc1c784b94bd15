"""A kernelspec of another environment, which has ipykernel only, gets time travel by metadata."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

from jupyter_timetravel import Client
from jupyter_timetravel.install import PROVISIONER
from tests.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux"),
]
PATIENCE_S = 60


@pytest.fixture(scope="module")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a virtual environment with ipykernel and nothing of ours."""
    folder = tmp_path_factory.mktemp("other") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    command = [str(python), "-m", "pip", "install", "--quiet", "ipykernel>=7.0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        give_up = pytest.fail if os.environ.get("TT_MUST_WORK") == "1" else pytest.skip
        give_up(f"missing ability: a package index: {done.stderr.splitlines()[-1:]}")
    return python


@pytest.fixture
def kernel(
    other_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    """Started as a Jupyter server would, from a kernelspec on disk."""
    stanza = {"provisioner_name": PROVISIONER, "config": {"auto": "cell"}}
    folder = tmp_path / "kernels" / "other"
    folder.mkdir(parents=True)
    spec = {
        "argv": [str(other_python), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Other",
        "language": "python",
        "env": {"COLOUR": "green", "PYTHONPATH": str(tmp_path)},
        "metadata": {"kernel_provisioner": stanza},
    }
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_TIMETRAVEL_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    (tmp_path / "runtime").mkdir(mode=0o700)
    (tmp_path / "work").mkdir()
    specs = KernelSpecManager(kernel_dirs=[str(folder.parent)])
    manager = KernelManager(kernel_name="other", kernel_spec_manager=specs)
    manager.start_kernel(cwd=str(tmp_path / "work"))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE_S)
        yield manager, client
    finally:
        client.stop_channels()
        if manager.has_kernel:
            manager.shutdown_kernel(now=True)


def run(client: BlockingKernelClient, code: str) -> str:
    """What a cell prints; an error is an assertion."""
    printed: list[str] = []

    def hook(message: dict) -> None:  # type: ignore[type-arg]
        if message["msg_type"] == "stream":
            printed.append(message["content"]["text"])

    reply = client.execute_interactive(code, timeout=PATIENCE_S, output_hook=hook)
    assert reply["content"]["status"] == "ok", reply["content"]
    return "".join(printed).strip()


def test_it_runs_there_and_goes_back(
    kernel: tuple[KernelManager, BlockingKernelClient], other_python: Path, tmp_path: Path
) -> None:
    _, client = kernel
    assert run(client, "import sys; print(sys.prefix)") == str(other_python.parents[1])
    assert run(client, "import os; print(os.environ['COLOUR'])") == "green"
    assert run(client, "print(sys.path.count(os.environ['PYTHONPATH']))") == "1"
    run(client, "x = [1]; open('note', 'w').write('old')")
    with Client(client) as travel:
        number = travel.checkpoint(comment="here").number
        run(client, "x.append(2); open('note', 'w').write('new')")
        travel.restore(number)
    assert run(client, "print(x, open('note').read())") == "[1] old"
    assert "restored" in run(client, f"%restore {number}")


def test_after_a_kill_nothing_is_left(
    kernel: tuple[KernelManager, BlockingKernelClient], tmp_path: Path
) -> None:
    manager, client = kernel
    run(client, "import subprocess; p = subprocess.Popen(['sleep', '600'])")
    mine = [process for process in psutil.process_iter() if belongs(process, tmp_path)]
    assert len(mine) >= 3  # supervisor, executor, its child; and frozen ones
    manager.shutdown_kernel(now=True)
    _, alive = psutil.wait_procs(mine, timeout=PATIENCE_S)
    assert not alive
    # no process was born on the way out
    until(lambda: not any(belongs(process, tmp_path) for process in psutil.process_iter()))


def belongs(process: psutil.Process, folder: Path) -> bool:
    """Whether a process was started by the kernel of this test."""
    try:
        return process.environ().get("IPYTHONDIR") == str(folder / "ipython") and (
            process.pid != os.getpid()
        )
    except psutil.Error:
        return False
