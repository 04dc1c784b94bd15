"""Images of CRIU's in a session: what is taken when one of them is damaged or cannot be written."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.durable_world import damage, image, kill
from tests.states.suite import WAYS

pytestmark = pytest.mark.root

ARGUMENTS = ("--Supervisor.durability=manual", "--Supervisor.images_by=both")


@pytest.fixture(autouse=True)
def criu(ability: Callable[[str, bool], None]) -> None:
    why = WAYS["criu"].missing()
    ability(why, not why)


def test_the_next_best_capture(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path
) -> None:
    """Our image, CRIU's, the variables, in this order; what is damaged is named."""
    store = tmp_path / "store"
    notebook = start_notebook(*ARGUMENTS, **document)
    notebook.run("x = [1]; y = x; it = iter(i for i in 'abc'); next(it)")
    notebook.run("%checkpoint")
    for engine in ("image", "criu"):
        assert image(notebook, 2, engine)["state"] == "ready", image(notebook, 2, engine)
    kill(notebook)

    notebook = start_notebook(*ARGUMENTS, **document)
    text = notebook.run("%restore 2").out
    assert "from its image on the disk" in text and "fresh" not in text, text
    assert notebook.run("next(it)").result == "'b'"
    kill(notebook)

    damage(store.glob("images/*/pages.ttpages"))
    notebook = start_notebook(*ARGUMENTS, **document)
    text = notebook.run("%restore 2").out
    assert "another image of it was taken" in text and "pages.ttpages" in text, text
    assert notebook.run("next(it)").result == "'b'"
    kill(notebook)

    shutil.copytree(store / "criu", tmp_path / "kept")
    for files in store.glob("criu/*/files"):
        (files / "pages-1.img").unlink()
    notebook = start_notebook(*ARGUMENTS, **document)
    text = notebook.run("%restore 2").out
    assert "pages.ttpages" in text and "pages-1.img" in text, text
    assert "the process itself could not be brought back" in text
    assert "not brought back: it" in text
    assert notebook.run("y.append(2); x").result == "[1, 2]"
    kill(notebook)

    damage(path for path in (store / "namespaces").rglob("*") if path.is_file())
    notebook = start_notebook(*ARGUMENTS, **document)
    notebook.run("present = 'still here'")
    cell = notebook.run("%restore 2", ok=False)
    said = cell.error + cell.text("stdout") + cell.text("stderr")
    assert "You are back where you were" in said, said
    assert notebook.run("present").result == "'still here'"
    kill(notebook)

    # a store that was copied is read and compared, and serves
    shutil.rmtree(store / "criu")
    shutil.copytree(tmp_path / "kept", store / "criu")
    notebook = start_notebook(*ARGUMENTS, **document)
    assert "another image of it was taken" in notebook.run("%restore 2").out
    assert notebook.run("next(it)").result == "'b'"


def test_a_mapped_file_that_was_replaced(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    """Our image refers to it and is not taken; CRIU's holds what it was."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        path = Path(folder) / "mapped"
        path.write_bytes(b"as it was" + bytes(8192))
        notebook = start_notebook(*ARGUMENTS, **document)
        notebook.run(
            "import mmap\n"
            f"with open({str(path)!r}, 'rb') as file:\n"
            "    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)\n"
            "mapped[5000:5003] = b'own'"
        )
        notebook.run("%checkpoint")
        for engine in ("image", "criu"):
            assert image(notebook, 2, engine)["state"] == "ready", image(notebook, 2, engine)
        kill(notebook)
        path.unlink()
        path.write_bytes(b"otherwise" + bytes(8192))
        notebook = start_notebook(*ARGUMENTS, **document)
        text = notebook.run("%restore 2").out
        assert "another image of it was taken" in text and str(path) in text, text
        shown = notebook.run("print(mapped[:9], mapped[5000:5003])").out
        assert shown == "b'as it was' b'own'"


def test_a_criu_that_fails(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path
) -> None:
    """Without a usable one ours is written, which is said; an error of its own is noted."""
    program = tmp_path / "broken"
    arguments = (*ARGUMENTS, f"--Supervisor.criu={program}")
    notebook = start_notebook(*arguments, **document)
    notebook.run("it = iter('abc'); next(it)")
    notebook.run("%checkpoint")
    assert image(notebook, 2, "image")["state"] == "ready"
    # it is said at the next cell
    said = notebook.run("pass")
    assert "CRIU cannot be used" in said.text("stdout") + said.text("stderr")

    # one that says its version, and then fails
    loader = next(Path("/lib64").glob("ld-linux*.so*"))
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo Version: 4.1 && exit\n'
        f'exec {loader} --library-path /lib /bin/false "$@"\n'
    )
    program.chmod(0o755)
    notebook.run("%checkpoint")
    number = notebook.head()["number"]
    failed = image(notebook, number, "criu")
    assert failed["state"] == "failed" and "exit status 1" in failed["error"], failed
    assert image(notebook, number, "image")["state"] == "ready"
    # where it alone is to write, and fails, ours is written instead
    notebook.run("%timetravel config images_by=criu")
    notebook.run("%checkpoint")
    number = notebook.head()["number"]
    assert image(notebook, number, "criu")["state"] == "failed"
    assert image(notebook, number, "image")["state"] == "ready"
    assert notebook.run("next(it)").result == "'b'"
    kill(notebook)
    notebook = start_notebook(*arguments, **document)
    assert notebook.run(f"%restore {number}").out.startswith("restored #")
    assert notebook.run("next(it)").result == "'b'"
