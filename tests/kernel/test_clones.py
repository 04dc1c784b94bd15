"""Case remote-04: one checkpoint restored several times; what must differ differs, and on request
seeded generators too."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_timetravel import cli
from tests.kernel.durable_world import durable, kill

SEED = """\
import random, ssl, tempfile, uuid, secrets, numpy as np
random.seed(1); np.random.seed(1); rng = np.random.default_rng(5)
mine = random.Random(7); old = np.random.RandomState(9); kept = {'deep': [np.random.default_rng(3)]}
_ = ssl.RAND_bytes(4), next(tempfile._get_candidate_names()), random.random()
"""
UNIQUE = (
    "import json; print(json.dumps([ssl.RAND_bytes(16).hex(), "
    "next(tempfile._get_candidate_names()), uuid.uuid4().hex, secrets.token_hex(8)]))"
)
DRAWN = (
    "import json; print(json.dumps([random.random(), float(np.random.rand()), float(rng.random()), "
    "mine.random(), float(old.rand()), float(kept['deep'][0].random())]))"
)


def drawn(notebook: Any, code: str) -> list[Any]:
    """What a cell drew."""
    found: list[Any] = json.loads(notebook.run(code).out)
    return found


def differ(*lists: list[Any]) -> bool:
    """Whether no two have anything in common."""
    values = [value for one in lists for value in one]
    return len(set(values)) == len(values)


def test_remote_04_by_the_frozen_process(notebook: Any) -> None:
    notebook.run(SEED)
    unique, seeded = drawn(notebook, UNIQUE), drawn(notebook, DRAWN)
    notebook.run("%restore 1")
    assert differ(unique, drawn(notebook, UNIQUE))
    assert drawn(notebook, DRAWN) == seeded
    first = notebook.run("%restore 1 --reseed").out
    assert "seeded anew: random (2), numpy.random (4)" in first, first
    other = drawn(notebook, DRAWN)
    notebook.run("%restore 1 --reseed")
    assert differ(seeded, other, drawn(notebook, DRAWN))
    assert notebook.run("%restore 1 --only files --reseed", ok=False).status == "error"
    notebook.run("%restore 1")
    assert drawn(notebook, DRAWN) == seeded


@pytest.mark.parametrize("images", [False, True], ids=["variables", "image"])
def test_remote_04_by_what_is_on_the_disk(
    start_notebook: Callable[..., Any], document: dict[str, Any], images: bool
) -> None:
    settings = f"--Supervisor.images={images}"
    first = start_notebook(settings, **document)
    first.run(SEED)
    first.run("%checkpoint --label seeded")
    number = first.head()["number"]
    assert durable(first, number)["state"] == "ready"
    seeded = drawn(first, DRAWN)
    kill(first)
    second = start_notebook(settings, **document)
    assert "seeded anew" in second.run("%timetravel resume --reseed").out
    resumed = drawn(second, DRAWN)
    second.run("%restore seeded")
    assert drawn(second, DRAWN) == seeded
    assert "seeded anew" in second.run("%restore seeded --reseed").out
    assert differ(seeded, resumed, drawn(second, DRAWN))


def test_remote_04_two_at_once(start_notebook: Callable[..., Any], tmp_path: Path) -> None:
    """Their addresses and keys are their own, and neither takes anything of the other's along."""
    archive = tmp_path / "one.ttl"
    first = start_notebook(**of(tmp_path / "first"))
    first.run(SEED)
    first.run("%checkpoint --label seeded")
    assert durable(first, first.head()["number"])["state"] == "ready"
    undisturbed = drawn(first, DRAWN)
    kill(first)
    assert cli.main(["export", str(tmp_path / "first" / "n.ipynb"), "-o", str(archive)]) == 0
    clones = []
    for name in ("K1", "K2"):
        where = of(tmp_path / name)
        book = str(tmp_path / name / "n.ipynb")
        assert cli.main(["import", str(archive), "--as", book]) == 0
        clones.append(start_notebook(**where))
        clones[-1].run("%restore seeded")
    one, two = clones
    assert differ(*(drawn(clone, UNIQUE) for clone in clones))
    assert drawn(one, DRAWN) == drawn(two, DRAWN) == undisturbed
    for clone in clones:
        clone.run("%restore seeded --reseed")
    assert differ(undisturbed, *(drawn(clone, DRAWN) for clone in clones))

    files = [json.loads(Path(clone.manager.connection_file).read_text()) for clone in clones]
    assert one.manager.kernel_id != two.manager.kernel_id
    assert files[0]["key"] != files[1]["key"]
    ports = [file[name] for file in files for name in file if name.endswith("_port")]
    assert len(ports) == 10 and len(set(ports)) == 10

    shared = tmp_path / "shared"
    shared.mkdir()
    made = (
        "import tempfile, fcntl\n"
        f"folder = tempfile.TemporaryDirectory(dir={str(shared)!r})\n"
        f"lock = open(folder.name + '/lock', 'w'); fcntl.flock(lock, fcntl.LOCK_EX)\n"
        "lock.write('mine'); lock.flush(); print(folder.name)"
    )
    folders = [Path(clone.run(made).out) for clone in clones]
    assert folders[0] != folders[1]
    one.manager.shutdown_kernel()
    assert (folders[1] / "lock").read_text() == "mine"
    with (folders[1] / "lock").open() as held, pytest.raises(BlockingIOError):
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert two.run("lock.write('!'); lock.flush(); print(open(lock.name).read())").out == "mine!"


def of(work: Path) -> dict[str, Any]:
    """What starts the kernel of a notebook in a folder, which is made."""
    work.mkdir()
    (work / "n.ipynb").write_text("{}")
    return {"cwd": work, "env": {"JPY_SESSION_NAME": str(work / "n.ipynb")}}
