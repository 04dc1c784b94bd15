"""Cells of agents in the notebook's file: where nobody else can have it open, and only there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest
from agent_world import agent

from tests.servers import address
from tests.waiting import PATIENCE

Start = Callable[..., Any]

DISPLAYS = """\
import sys
from IPython.display import clear_output, display
print("gone"); clear_output(); print("one"); print("two"); print("err", file=sys.stderr)
shown = display({"text/plain": "before", "image/png": "iVBORw0KGgo="}, raw=True, display_id=True)
shown.update({"text/plain": "after"}, raw=True)
40 + 2
"""


@pytest.fixture(autouse=True)
def environment(start_notebook: Start) -> None:
    """Store, keys and runtime directory of the test: servers and their kernels inherit them."""


def read(book: Path) -> Any:
    notebook = nbformat.read(book, as_version=4)
    nbformat.validate(notebook)
    return notebook.cells


async def test_cells_are_appended_with_their_outputs(book: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# by hand")])
    nbformat.write(notebook, book)
    book.chmod(0o640)
    async with agent("--write") as ask:
        told = await ask.run(book, DISPLAYS)
        assert told["notebook_file"] == f"appended to {book}"
        failed = await ask("run_cell", notebook=str(book), code="1/0")
        assert "appended" in failed["notebook_file"]
        quiet = await ask.run(book, "quiet = 1", write=False)
        assert quiet["notebook_file"] is None
        # one that outlasts its limit is appended when it is known to have ended
        slow = await ask(
            "run_cell",
            notebook=str(book),
            code="import time, pathlib\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)",
            timeout_s=1,
        )
        assert slow["state"] == "running" and slow["notebook_file"] is None
        assert len(read(book)) == 3
        (book.parent / "go").touch()
        for _ in range(2):  # once
            done = await ask("wait_for_cell", notebook=str(book), cell=slow["cell"])
            assert done["state"] == "finished" and "appended" in done["notebook_file"]
        by_hand, first, second, third = read(book)
        assert by_hand.source == "# by hand" and book.stat().st_mode & 0o777 == 0o640
        assert (first.source, first.execution_count) == (DISPLAYS, 1)
        streams = {one.name: one.text for one in first.outputs if one.output_type == "stream"}
        assert streams == {"stdout": "one\ntwo\n", "stderr": "err\n"}
        assert [one.data["text/plain"] for one in first.outputs if "data" in one] == [
            "after",
            "42",
        ]
        assert second.outputs[-1].ename == "ZeroDivisionError" and third.outputs == []
        # it is the cell of the timeline
        shown = await ask("show_checkpoint", notebook=str(book), checkpoint=told["checkpoint"])
        assert [one["cell_id"] for one in shown["cells"]] == [first.id]
        assert sorted(path.name for path in book.parent.iterdir()) == ["go", book.name]


async def test_nothing_is_written_where_somebody_may_have_it_open(book: Path, on: Start) -> None:
    before = book.read_bytes()
    with server_with(book):
        async with agent() as ask:
            told = await ask.run(book, "x = 1", write=True)
            assert told["checkpoint"] == 1
            assert "Jupyter server" in told["notebook_file"]
            assert "has it open" in told["notebook_file"]
            assert told["notebook_file"] in await ask.said(
                "wait_for_cell", notebook=str(book), cell=told["cell"]
            )
            await ask("shutdown_kernel", notebook=str(book))
    assert book.read_bytes() == before
    on(book)
    async with agent("--write") as ask:
        told = await ask.run(book, "x = 2")
        assert "started by another program" in told["notebook_file"]
    assert book.read_bytes() == before


async def test_a_file_that_cannot_be_taken_is_left_alone(book: Path) -> None:
    async with agent("--write") as ask:
        await ask.run(book, "x = 1")
        book.write_text("{ this is no notebook")
        told = await ask.run(book, "x = 2")
        assert "cannot be read" in told["notebook_file"]
        assert book.read_text() == "{ this is no notebook"
        assert (await ask.run(book, "x"))["result"] == "2"


@contextmanager
def server_with(book: Path) -> Iterator[None]:
    """A Jupyter server that has a session of the notebook, with an ordinary kernel."""
    command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root"]
    command += ["--ServerApp.port=0", "--IdentityProvider.token=t"]
    log = book.parent.parent / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=book.parent, stdout=output, stderr=output)
    try:
        url = address(process, Path(os.environ["JUPYTER_RUNTIME_DIR"]), log)
        model = {"path": book.name, "type": "notebook", "name": "", "kernel": {"name": "python3"}}
        request = urllib.request.Request(
            f"{url}api/sessions",
            data=json.dumps(model).encode(),
            headers={"Authorization": "token t", "Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=PATIENCE).close()
        yield
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE)
