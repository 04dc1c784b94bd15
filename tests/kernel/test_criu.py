"""The exact process on the disk, written and put back by CRIU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.kernel.durable_world import image, kill
from tests.kernel.test_images import CHECK, SESSION

pytestmark = pytest.mark.root


def test_ten_cycles(start_notebook: Callable[..., Any], document: dict[str, Any]) -> None:
    arguments = ("--Supervisor.durability=manual", "--Supervisor.images_by=criu")
    notebook = start_notebook(*arguments, **document)
    notebook.run(SESSION)
    notebook.run("%checkpoint")
    assert image(notebook, 2, "criu")["state"] == "ready", image(notebook, 2, "criu")
    kill(notebook)
    for turn in range(10):
        notebook = start_notebook(*arguments, **document)
        text = notebook.run("%timetravel resume").out
        assert text.startswith("restored #") and "a fresh one" not in text, text
        assert "new id" not in text
        ons = " and on" * (turn + 1)
        expected = f"{turn + 2} True True half a line, buffered{ons}"
        assert notebook.run(CHECK).out == expected
        assert notebook.run("await task; print(done)").out == "['slept']"
        number = int(notebook.run("%checkpoint").out.split("#")[1].split()[0])
        assert image(notebook, number, "criu")["state"] == "ready"
        # the frozen process that the image became serves for more than one restore
        notebook.run("%restore -1")
        assert notebook.run("thread.is_alive()").result == "True"
        kill(notebook)
