"""Case docker-02: files on the mount belong to the user, before and after a restore."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jupyter_timetravel.containers.places import state_directory, store_of
from tests.conftest import Notebook
from tests.containers.conftest import START, built

FIRST = (
    'import os; open("r.txt", "w").write("1"); os.makedirs("dd", exist_ok=True)\n'
    'open("dd/s.sh", "w").write("x"); os.chmod("dd/s.sh", 0o750)'
)
SECOND = 'open("r.txt", "w").write("2"); os.remove("dd/s.sh")'
NAMES = ("r.txt", "dd", "dd/s.sh")


def owners(work: Path) -> list[str]:
    """``uid:gid mode name`` of each, as the host sees them."""
    found = [((work / name).lstat(), name) for name in NAMES]
    return [f"{one.st_uid}:{one.st_gid} {stat.S_IMODE(one.st_mode):o} {n}" for one, n in found]


def of_others(place: Path, docker: Any, image: str) -> list[Path]:
    """Files and a directory of other users on the mount, made by root as only a container can here:
    one that the user may read, and one that he may not."""
    make = (
        "mkdir /w/od; echo theirs > /w/o; echo secret > /w/p; echo deep > /w/od/f\n"
        "chown -R 2000:2000 /w/o /w/p /w/od; chmod 644 /w/o; chmod 640 /w/p /w/od/f\n"
        "touch -d '2020-01-01 10:11:12.123456789' /w/o /w/p /w/od/f /w/od"
    )
    docker.containers.run(
        image,
        ["sh", "-c", make],
        entrypoint="",
        user="0",
        volumes={str(place / "work"): {"bind": "/w", "mode": "rw"}},
        remove=True,
    )
    return [place / "work" / name for name in ("o", "p", "od", "od/f")]


def facts(paths: list[Path]) -> list[tuple[int, ...]]:
    found = [path.lstat() for path in paths]
    return [(s.st_uid, s.st_gid, s.st_mode, s.st_mtime_ns, s.st_size, s.st_ino) for s in found]


def the_case(notebook: Notebook, work: Path, theirs: list[Path], uid: int, gid: int) -> None:
    before = facts(theirs)
    notebook.cells(FIRST, SECOND)
    assert not (work / "dd" / "s.sh").exists()
    assert "restored #1" in notebook.run("%restore 1").out
    usual = 0o666 & ~0o022, 0o777 & ~0o022
    assert owners(work) == [
        f"{uid}:{gid} {usual[0]:o} r.txt",
        f"{uid}:{gid} {usual[1]:o} dd",
        f"{uid}:{gid} 750 dd/s.sh",
    ]
    assert (work / "r.txt").read_text() == "1"
    inside = notebook.run(
        "home = os.path.expanduser('~'); open(home + '/mine', 'w').write('x')\n"
        "print(os.access('r.txt', os.W_OK), os.access(home, os.W_OK), os.getuid(), os.getgid())"
    )
    assert inside.out == f"True True {uid} {gid}"
    assert facts(theirs) == before


@pytest.mark.parametrize("default", ["root", "1000:1000"])
def test_files_belong_to_the_user(
    start: START, place: Path, docker: Any, image: str, default: str
) -> None:
    """Whoever the image's default user is."""
    work = place / "work"
    theirs = of_others(place, docker, image)
    with built(docker, f"FROM {image}", f"USER {default}") as other:
        notebook = start(image=other)
        the_case(notebook, work, theirs, os.getuid(), os.getgid())
        # what the user does in a terminal, without sudo
        commands = "echo host >> r.txt && rm dd/s.sh"
        assert subprocess.run(["sh", "-c", commands], cwd=work, check=False).returncode == 0
        assert notebook.run("print(open('r.txt').read().split(), os.listdir('dd'))").out == (
            "['1host'] []"
        )
        notebook.manager.shutdown_kernel()
    store = Path(store_of(other))
    assert store.is_dir()
    assert subprocess.run(["rm", "-rf", str(store)], check=False).returncode == 0
    assert not store.exists()


@pytest.mark.root
@pytest.mark.parametrize("default", ["root", "1000:1000"])
def test_root_starts_it_for_a_user(
    start: START, place: Path, docker: Any, image: str, default: str
) -> None:
    """The user of the case: 1234. All that is his he may delete, his store too."""
    work = place / "work"
    os.chown(work, 1234, 1234)
    theirs = of_others(place, docker, image)
    with built(docker, f"FROM {image}", f"USER {default}") as other:
        notebook = start(image=other, user="1234:1234")
        the_case(notebook, work, theirs, 1234, 1234)
        as_him(work, "echo host >> r.txt && rm dd/s.sh")
        notebook.manager.shutdown_kernel()
    [state] = (place / "data" / "timetravel-containers").iterdir()
    store = state / Path(store_of(other)).relative_to(state_directory(other))
    as_him(store, "rm -rf ./* ./.[a-z]*")
    assert list(store.iterdir()) == []


def as_him(directory: Path, commands: str) -> None:
    """What the user does in a terminal there, without sudo."""
    words = ["setpriv", "--reuid=1234", "--regid=1234", "--clear-groups", "sh", "-c", commands]
    assert subprocess.run(words, cwd=directory, check=False).returncode == 0
