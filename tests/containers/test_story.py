"""The whole story: a notebook in a container breaks, loses its container, and loses everything."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Notebook, open_up
from tests.containers.conftest import PACKAGES, START, container, durable, ours, revive, until
from tests.exchange.conftest import call, write_notebook
from tests.remote.conftest import Remote, endpoint, s3

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


def begun(start: START, document: Path, wheels: Path) -> Notebook:
    """A notebook with a package, variables, and files in workspace and home."""
    notebook = start(
        env={"JPY_SESSION_NAME": str(document)}, network="none", mounts=[f"{wheels}:{wheels}:ro"]
    )
    said = notebook.run(f"!pip install --no-index {wheels}/greeting-1.0-py3-none-any.whl")
    assert "Successfully installed greeting-1.0" in said.out
    notebook.run(
        LOOK + "\nimport greeting, numpy\n"
        "kept = {'list': [1, 2], 'text': greeting.VERSION}; alias = kept['list']\n"
        "array = numpy.arange(4) * 1.5\n"
        "def shout(n): return 'ha' * n"
    )
    notebook.run(
        "os.makedirs('data/deep'); open('data/deep/table.csv', 'w').write('a,b')\n"
        "os.symlink('deep/table.csv', 'data/link'); open('plan.txt', 'w').write('first')\n"
        "for name in ('notes', '.tokenrc'):\n"
        "    open(os.path.expanduser('~/' + name), 'w').write(name + ' of mine')"
    )
    return notebook


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_break_it_lose_the_container_lose_everything(
    start: START, place: Path, docker: Any, image: str, s3: Remote
) -> None:
    document = place / "work" / "a.ipynb"
    write_notebook(document, "x = 1")
    wheels = place / "wheels"
    wheels.mkdir()
    wheel(wheels, "greeting", "1.0", "VERSION = '1.0'\n")
    wheel(wheels, "greeting", "2.0", "raise RuntimeError('2.0 is broken')\n")
    wheel(wheels, "numpy", "99.0", "raise RuntimeError('no numpy at all')\n")

    notebook = begun(start, document, wheels)
    notebook.run("%checkpoint --label good")
    good = notebook.run(STATE).out
    assert "'1.0 2.0'" in good and "first" in good and "notes of mine" in good
    overlay = notebook.command("get", checkpoint="good")["checkpoint"]["captures"]
    assert any(c["engine"] == "overlay" and c["state"] == "ready" for c in overlay), overlay

    # pip breaks two packages, then everything is deleted
    said = notebook.run(
        f"!pip install --no-index {wheels}/greeting-2.0*.whl {wheels}/numpy-99*.whl"
    )
    assert "Successfully installed greeting-2.0 numpy-99.0" in said.out
    assert "2.0 is broken" in notebook.run("!python -c 'import greeting'").out
    notebook.run("kept.clear(); alias.append(3); array[:] = 0; del shout")
    notebook.run("!rm -rf {here} ~ ~/.[a-z]* data plan.txt")
    assert notebook.run("print(os.path.exists(here), os.listdir(os.path.expanduser('~')))").out in (
        "False []"
    )
    assert "restored #" in notebook.run("%restore good").out
    assert notebook.run(STATE).out == good

    # the container goes away: a new one goes on
    notebook.run("kept['text'] = 'later'; open('plan.txt', 'w').write('second')")
    notebook.run("%checkpoint --label later")
    later = notebook.run(STATE).out
    assert later != good
    until(lambda: durable(notebook, "later"), "it is on the disk")
    old = container(docker, place)
    old.remove(force=True)
    revive(notebook)
    assert container(docker, place).id != old.id
    report = notebook.run("%timetravel resume").out
    assert notebook.run(STATE).out == later, report

    # everything local is lost but the keys: object storage has it
    notebook.head()
    notebook.manager.shutdown_kernel()
    assert ours(docker, place) == []
    call("push", s3.url, document, "--docker", image, **s3.env)
    open_up(place / "data")
    shutil.rmtree(place / "data" / "timetravel-containers")
    for left in (place / "work").iterdir():
        shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    document = place / "work" / "b.ipynb"
    write_notebook(document)
    assert "restorable here" in call("pull", s3.url, "--check", "--docker", image, **s3.env)
    call("pull", s3.url, "--as", document, "--docker", image, **s3.env)
    notebook = start(
        env={"JPY_SESSION_NAME": str(document)}, network="none", mounts=[f"{wheels}:{wheels}:ro"]
    )
    report = notebook.run("%restore later").out
    assert notebook.run(STATE).out == later, report
    report = notebook.run("%restore good").out
    assert notebook.run(STATE).out == good, report
