"""The whole story: a notebook in a container breaks, loses its container, and loses everything."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import open_up
from tests.containers.conftest import PACKAGES, container, ours
from tests.exchange.conftest import call, write_notebook
from tests.remote.conftest import Remote, endpoint, s3
from tests.server.server_world import Kernel, Server
from tests.waiting import until

__all__ = ["endpoint", "s3"]  # fixtures

LOOK = f"""
import hashlib, os, subprocess, sys
{PACKAGES}

def environment():
    "The digest of all that is installed, and what is in the home directory."
    digest = hashlib.sha256()
    for top, names, files in sorted(os.walk(here)):
        names[:] = [name for name in names if name != "__pycache__"]
        for name in sorted(files):
            path = os.path.join(top, name)
            digest.update(f"{{path}} {{os.stat(path).st_mode}}\\n".encode())
            digest.update(open(path, "rb").read())
    home = {{n: open(os.path.expanduser("~/" + n)).read() for n in ("notes", ".tokenrc")}}
    code = "import greeting, numpy; print(greeting.VERSION, numpy.ones(2).sum())"
    fresh = [sys.executable, "-c", code]
    return digest.hexdigest(), home, subprocess.check_output(fresh, text=True).strip()

def values():
    return kept, array.tolist(), shout(2), kept["list"] is alias

def files():
    return [open(p).read() for p in ("data/deep/table.csv", "plan.txt")], os.readlink("data/link")
"""
STATE = "print(values(), files(), environment(), sep='\\n')"


def wheel(directory: Path, name: str, version: str, source: str) -> Path:
    """A wheel with one module, as pip takes it."""
    path = directory / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    kind = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/__init__.py", source)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(f"{info}/WHEEL", kind)
        archive.writestr(
            f"{info}/RECORD",
            f"{name}/__init__.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
        )
    return path


def begun(kernel: Kernel, wheels: Path) -> None:
    """A notebook with a package, variables, and files in workspace and home."""
    said = kernel.run(f"!pip install --no-index {wheels}/greeting-1.0-py3-none-any.whl")
    assert "Successfully installed greeting-1.0" in said
    kernel.run(
        LOOK + "\nimport greeting, numpy\n"
        "kept = {'list': [1, 2], 'text': greeting.VERSION}; alias = kept['list']\n"
        "array = numpy.arange(4) * 1.5\n"
        "def shout(n): return 'ha' * n"
    )
    kernel.run(
        "os.makedirs('data/deep'); open('data/deep/table.csv', 'w').write('a,b')\n"
        "os.symlink('deep/table.csv', 'data/link'); open('plan.txt', 'w').write('first')\n"
        "for name in ('notes', '.tokenrc'):\n"
        "    open(os.path.expanduser('~/' + name), 'w').write(name + ' of mine')"
    )


def captures(server: Server, kernel: Kernel, label: str) -> dict[tuple[str, str], str]:
    """The states of a checkpoint's captures, as the server tells them."""
    with server.as_user() as http:
        answer = http.get(f"/sessions/{kernel.id}/checkpoints/{label}")
    assert answer.status_code == 200, answer.text
    found = answer.json()["checkpoint"]["captures"]
    return {(one["kind"], one["engine"]): one["state"] for one in found}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_break_it_lose_the_container_lose_everything(
    server: Server,
    install: Callable[..., str],
    place: Path,
    docker: Any,
    image: str,
    s3: Remote,
) -> None:
    work = server.notebooks
    wheels = place / "wheels"
    wheels.mkdir()
    wheel(wheels, "greeting", "1.0", "VERSION = '1.0'\n")
    wheel(wheels, "greeting", "2.0", "raise RuntimeError('2.0 is broken')\n")
    wheel(wheels, "numpy", "99.0", "raise RuntimeError('no numpy at all')\n")
    boxed = install(network="none", mounts=[f"{wheels}:{wheels}:ro"])

    kernel = server.start("a.ipynb", boxed)
    begun(kernel, wheels)
    kernel.run("%checkpoint --label good")
    good = kernel.run(STATE)
    assert "'1.0 2.0'" in good and "first" in good and "notes of mine" in good
    assert captures(server, kernel, "good")["filesystem", "overlay"] == "ready"

    # pip breaks two packages, then everything is deleted
    said = kernel.run(f"!pip install --no-index {wheels}/greeting-2.0*.whl {wheels}/numpy-99*.whl")
    assert "Successfully installed greeting-2.0 numpy-99.0" in said
    assert "2.0 is broken" in kernel.run("!python -c 'import greeting'")
    kernel.run("kept.clear(); alias.append(3); array[:] = 0; del shout")
    kernel.run("!rm -rf {here} ~ ~/.[a-z]* data plan.txt")
    assert kernel.run("print(os.path.exists(here), os.listdir(os.path.expanduser('~')))") == (
        "False []"
    )
    assert "restored #" in kernel.run("%restore good")
    assert kernel.run(STATE) == good

    # the container goes away: Jupyter starts a new one, which goes on
    kernel.run("kept['text'] = 'later'; open('plan.txt', 'w').write('second')")
    kernel.run("%checkpoint --label later")
    later = kernel.run(STATE)
    assert later != good

    def durable() -> bool:
        states = captures(server, kernel, "later")
        return states.get(("namespace", "dill")) == states.get(("process", "image")) == "ready"

    until(durable, "it is on the disk")
    old = container(docker, place)
    old.remove(force=True)
    until(lambda: [c for c in ours(docker, place) if c.status == "running"], "Jupyter noticed it")
    assert container(docker, place).id != old.id
    kernel.wait()
    report = kernel.run("%timetravel resume")
    assert kernel.run(STATE) == later, report

    # everything local is lost but the keys: object storage has it
    kernel.run("")
    server.end(kernel)
    assert ours(docker, place) == []
    keys = {"JUPYTER_TIMETRAVEL_KEYS": server.env["JUPYTER_TIMETRAVEL_KEYS"], **s3.env}
    call("push", s3.url, work / "a.ipynb", "--docker", image, **keys)
    open_up(place / "data")
    shutil.rmtree(place / "data" / "timetravel-containers")
    for left in work.iterdir():
        shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    write_notebook(work / "b.ipynb")
    assert "restorable here" in call("pull", s3.url, "--check", "--docker", image, **keys)
    call("pull", s3.url, "--as", work / "b.ipynb", "--docker", image, **keys)
    kernel = server.start("b.ipynb", boxed)
    report = kernel.run("%timetravel resume")
    assert kernel.run("print(values())") == later.splitlines()[0], report
    report = kernel.run("%restore later")
    assert kernel.run(STATE) == later, report
    report = kernel.run("%restore good")
    assert kernel.run(STATE) == good, report
