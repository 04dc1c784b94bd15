"""Images of CRIU's in a session: what is taken when one of them is damaged or cannot be written."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.durable_world import changed_package, damage, image, kill
from tests.states.suite import WAYS
from tests.waiting import until

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


LIBRARY = "const char filling[1 << 19] = {1}; static int n; int next(void) { return 7 + n++; }"
"""Large enough for CRIU's images to refer to it."""


@pytest.fixture
def library(ability: Callable[[str, bool], None]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        path = Path(folder) / "used.so"
        (path.with_suffix(".c")).write_text(LIBRARY)
        command = ["cc", "-shared", "-fPIC", "-o", str(path), str(path.with_suffix(".c"))]
        found = shutil.which("cc") and subprocess.run(command, check=False).returncode == 0
        ability("a C compiler", bool(found))
        yield path


def copies(store: Path) -> set[str]:
    return {path.name for path in store.glob("criu-libraries/*")} - {"files"}


def test_the_end_of_a_session_leaves_copies_of_libraries(
    start_notebook: Callable[..., Any],
    document: dict[str, Any],
    library: Path,
    tmp_path: Path,
) -> None:
    """Though it comes right after the image that needs them; then a library may be replaced."""
    notebook = start_notebook(*ARGUMENTS, **document)
    notebook.run(f"import ctypes; library = ctypes.CDLL({str(library)!r}); library.next()")
    notebook.run("%checkpoint")
    assert image(notebook, 2, "criu")["state"] == "ready", image(notebook, 2, "criu")
    notebook.manager.shutdown_kernel()
    assert len(copies(tmp_path / "store")) > 1
    assert not any(name.startswith("tmp-") for name in copies(tmp_path / "store"))
    library.write_bytes(b"another one")
    notebook = start_notebook(*ARGUMENTS, **document)
    text = notebook.run("%restore 2").out
    assert "another image of it was taken" in text and str(library) in text, text
    assert notebook.run("library.next()").result == "8"


def test_libraries_that_cannot_be_copied(
    start_notebook: Callable[..., Any],
    document: dict[str, Any],
    library: Path,
    tmp_path: Path,
) -> None:
    """It is said, the image is there and serves; once a library is replaced, the next best does."""
    copying = "    with suppress(OSError):\n        clone_file(target, source)\n"
    full = "    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))\n"
    package = changed_package(tmp_path / "full", ("store/libraries.py", copying, full + copying))
    env = {**document["env"], "PYTHONPATH": str(package)}
    notebook = start_notebook(*ARGUMENTS, **{**document, "env": env})
    notebook.run(
        f"import ctypes; library = ctypes.CDLL({str(library)!r}); library.next()\n"
        "it = iter('abc'); n = next(it)"
    )
    notebook.run("%checkpoint")
    assert image(notebook, 2, "criu")["state"] == "ready", image(notebook, 2, "criu")
    until(lambda: "needs these files as they are" in said_next(notebook), "that it is said")
    kill(notebook)
    assert copies(tmp_path / "store") == set()

    another = library.read_bytes() + b"\0"
    library.unlink()
    library.write_bytes(another)
    notebook = start_notebook(*ARGUMENTS, **document)
    text = notebook.run("%restore 2").out
    assert "was replaced before the store had a copy of it" in text and str(library) in text, text
    assert "the process itself could not be brought back" in text
    assert notebook.run("n").result == "'a'"
    # the next image has copies again
    notebook.run("%checkpoint")
    number = notebook.head()["number"]
    assert image(notebook, number, "criu")["state"] == "ready"
    until(lambda: len(copies(tmp_path / "store")) > 1, "the copies")


def said_next(notebook: Any) -> str:
    cell = notebook.run("pass")
    return str(cell.text("stdout") + cell.text("stderr"))


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
