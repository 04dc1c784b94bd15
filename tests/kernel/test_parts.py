"""After a restore of a part the session is in a state of its own, which outlives its kernel too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.exhaustive import more
from tests.kernel.durable_world import durable, kill


@pytest.mark.parametrize(
    "how",
    ["%restore 1 --only process", "files", "bring x", *more("%restore 1 --vars x", "bring f")],
)
def test_a_kernel_that_ends_right_after_it(
    how: str, start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    """A cell asks for it, or somebody else: no cell runs after it."""
    notebook = start_notebook("--Supervisor.durability_interval=0", **document)
    notebook.run("x = 1; open('f', 'w').write('one')")
    durable(notebook, 1)
    notebook.run("x = 2; open('f', 'w').write('two')")
    durable(notebook, 2)
    if how.startswith("%"):
        notebook.run(how)
    elif how.startswith("bring"):
        part = {"names": ["x"]} if how.endswith("x") else {"paths": ["f"]}
        notebook.command("bring", checkpoint=1, **part)
    else:
        notebook.command("restore", checkpoint=1, only=how)
    of_files = how.endswith(("files", " f"))
    expected = "(2, 'one')" if of_files else "(1, 'two')"
    head = notebook.head()
    assert head["reason"] == ("cell" if "--vars" in how else "part"), head
    durable(notebook, head["number"])
    if head["reason"] == "part":
        durable(notebook, head["number"] - 1)
    kill(notebook)
    notebook = start_notebook(**document)
    assert f"restored #{head['number']}" in notebook.run("%timetravel resume").out
    assert notebook.run("x, open('f').read()").result == expected
    if head["reason"] == "part":  # and back to before it
        notebook.run(f"%restore {head['number'] - 1}")
        assert notebook.run("x, open('f').read()").result == "(2, 'two')"
