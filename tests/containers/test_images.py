"""A checkpoint as an image: what the session installed and deleted is so for whoever starts it."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_timetravel.cli import main
from tests.containers.conftest import START

LOOK = """
import glob, os, sys
here = glob.glob(sys.prefix + '/lib/python3*/site-packages')[0]
mine = here + '/mine.py'
print([os.path.exists(f'{here}/{name}') for name in ('dill', 'zstandard')], open(mine).read(),
      sorted(os.listdir(here + '/comm')), oct(os.stat(mine).st_mode & 0o777))
"""


@pytest.fixture
def session(start: START, place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A notebook with a session in a container: #1 to #3. Returns the notebook's path."""
    document = place / "work" / "a.ipynb"
    document.write_text("{}")
    notebook = start(env={"JPY_SESSION_NAME": str(document)})
    notebook.cells(
        "import glob, sys, os, shutil\n"
        "here = glob.glob(sys.prefix + '/lib/python3*/site-packages')[0]\n"
        "open(here + '/mine.py', 'w').write('1'); os.chmod(here + '/mine.py', 0o750)",
        "shutil.rmtree(here + '/dill'); shutil.rmtree(here + '/comm'); os.mkdir(here + '/comm')\n"
        "open(here + '/comm/only', 'w').close(); open(here + '/mine.py', 'w').write('2')\n"
        "os.makedirs('data/deep'); open('data/deep/f', 'w').write('hello')\n"
        "os.symlink('f', 'data/l')",
        "shutil.rmtree(here + '/zstandard'); open(here + '/mine.py', 'w').write('3')",
    )
    notebook.head()
    notebook.manager.shutdown_kernel()
    [store] = (place / "data" / "timetravel-containers").glob("*/kept/store")
    monkeypatch.setenv("JUPYTER_TIMETRAVEL_STORE", str(store))
    return document


@pytest.fixture
def tag(docker: Any) -> Iterator[str]:
    name = "timetravel-test-export:1"
    yield name
    if docker.images.list(name):
        docker.images.remove(name, force=True)


def printed(docker: Any, tag: str, *command: str) -> str:
    """What a container prints, asked for when it has ended: `run` misses what a quick one says."""
    container = docker.containers.create(tag, list(command), network_mode="none")
    try:
        container.start()
        assert container.wait()["StatusCode"] == 0
        return str(container.logs().decode())
    finally:
        container.remove(force=True)


def seen(docker: Any, tag: str) -> str:
    return printed(docker, tag, "python", "-c", LOOK)


def test_an_image_of_a_checkpoint(docker: Any, session: Path, tag: str) -> None:
    assert main(["export", str(session), "2", "--image", tag, "--workspace"]) == 0
    assert seen(docker, tag) == "[False, True] 2 ['only'] 0o750\n"
    where = session.parent / "data"
    assert printed(docker, tag, "cat", f"{where}/deep/f") == "hello"
    assert printed(docker, tag, "readlink", f"{where}/l") == "f\n"


def test_a_kernel_starts_from_the_image(
    docker: Any, session: Path, tag: str, start: START, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a colleague does: the package is there, sessions are those of the new image."""
    assert main(["export", str(session), "1", "--image", tag]) == 0
    monkeypatch.delenv("JUPYTER_TIMETRAVEL_STORE")
    notebook = start(image=tag, network="none")
    notebook.run("import mine; was = open(mine.__file__).read(); print(was)\nx = 1")
    assert notebook.run("!cat {mine.__file__}").out == "1"
    notebook.run("!rm {mine.__file__}\nx = 2")
    notebook.run("%restore 1")
    assert notebook.run("print(x, open(mine.__file__).read())").out == "1 1"
    notebook.manager.shutdown_kernel()


def test_an_archive_without_a_daemon(
    docker: Any,
    session: Path,
    tag: str,
    image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = tmp_path / "base.tar"
    with open(base, "wb") as file:
        for piece in docker.images.get(image).save():
            file.write(piece)
    target = tmp_path / "image.tar"
    with monkeypatch.context() as patch:
        patch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
        command = ["export", str(session), "3", "--image", tag, "--base", str(base)]
        assert main([*command, "-o", str(target)]) == 0
    with tarfile.open(target) as archive:
        assert json.load(archive.extractfile("oci-layout"))["imageLayoutVersion"] == "1.0.0"  # type: ignore[arg-type]
        index = json.load(archive.extractfile("index.json"))  # type: ignore[arg-type]
        digest = index["manifests"][0]["digest"].replace(":", "/")
        manifest = json.load(archive.extractfile(f"blobs/{digest}"))  # type: ignore[arg-type]
        for one in [manifest["config"], *manifest["layers"]]:
            assert archive.getmember(f"blobs/{one['digest'].replace(':', '/')}").size == one["size"]
    docker.images.load(target.read_bytes())
    assert seen(docker, tag) == "[False, False] 3 ['only'] 0o750\n"


def test_what_cannot_be_made(session: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["--image", "a:1"], "name it behind the notebook"),
        (["2", "--image", "no-tag"], "has no tag"),
        (["2", "--image", "a:1", "--base", "no-such-base:1"], "There is no image 'no-such-base:1'"),
        (["2", "--image", "a:1", "--base", __file__], "is no image as `docker save` writes it"),
        (
            ["2", "--image", "a:1", "-o", "/nonexistent/x.tar"],
            "There is no directory for /nonexistent",
        ),
        (["2"], "Say where to"),
        (["9", "--image", "a:1"], "There is no checkpoint"),
    ):
        assert main(["export", str(session), *arguments]) == 1
        assert said in capsys.readouterr().err
