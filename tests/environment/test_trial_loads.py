"""Trial loads of what was pickled, while cells change the environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kernel.durable_world import durable


def test_a_package_that_a_later_cell_breaks_costs_no_variable(
    start: Callable[..., Any], E: Path, work: Path
) -> None:
    package = E / "site-packages"
    package.mkdir()
    (package / "thing_of_a_package.py").write_text("class Thing: pass\n")
    options = {"cwd": work, "env": {"JPY_SESSION_NAME": str(work / "n.ipynb")}}
    notebook = start("--Supervisor.durability=manual", **options)
    notebook.run(
        f"import sys; sys.path.insert(0, {str(package)!r}); sys.dont_write_bytecode = True\n"
        "import thing_of_a_package; x = thing_of_a_package.Thing(); x.a = 41"
    )
    notebook.run(f"import os; os.unlink({str(package / 'thing_of_a_package.py')!r})")
    notebook.run("%timetravel label 1 good")  # from here on it is written, without that file
    capture = durable(notebook, 1)
    assert capture["state"] == "ready", capture
    assert not [note for note in capture["not_captured"] if "x" in note.values()], capture
    notebook.manager.shutdown_kernel(now=True)
    notebook = start("--Supervisor.durability=manual", **options)
    notebook.run("%restore good")
    assert notebook.run("print(x.a + 1)").out == "42"


def test_what_cannot_be_loaded_at_all_is_found_out(start: Callable[..., Any], work: Path) -> None:
    notebook = start(
        "--Supervisor.durability=manual",
        cwd=work,
        env={"JPY_SESSION_NAME": str(work / "n.ipynb")},
    )
    notebook.run(
        "class Never:\n    def __reduce__(self): return (int, ('no number',))\nx, y = Never(), 1"
    )
    notebook.run("%timetravel label 1 good")
    capture = durable(notebook, 1)
    assert capture["state"] == "ready"
    assert [note for note in capture["not_captured"] if "x" in note.values()], capture
