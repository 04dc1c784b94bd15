"""What other programs do to the machine's files is seen by sessions that have looked before."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

WHO = ["user", pytest.param("root", marks=pytest.mark.root)]

UNTIL = """
def until(true):
    import time
    end = time.monotonic() + 60
    while not true() and time.monotonic() < end: time.sleep(0.05)
    return true()
"""


def replace(path: Path, text: str) -> None:
    """As editors save: another file takes the name."""
    (path.parent / "saved").write_text(text)
    (path.parent / "saved").rename(path)


@pytest.mark.parametrize("who", WHO)
def test_what_others_write_replace_and_delete(start: Any, ability: Any, E: Path, who: str) -> None:
    ability("root", os.geteuid() == 0 or who == "user")
    (E / "module.py").write_text("V = 1\n")
    (E / "gone").mkdir()
    (E / "gone" / "file").touch()
    notebook = start()
    run = notebook.run
    run(f"from pathlib import Path\nE = Path({str(E)!r})\n{UNTIL}")
    looked = (
        "print((E / 'data').exists(), (E / 'module.py').read_text(), (E / 'gone/file').exists())"
    )
    assert run(looked).out == "False V = 1\n True"

    # a cell that waits for it is told while it runs
    waits = notebook.send("print('waiting', flush=True)\nprint(until((E / 'data').exists))")
    notebook.until_printed(waits, "waiting")
    (E / "data").write_text("from elsewhere")
    assert notebook.wait(waits).out.endswith("True")

    replace(E / "module.py", "V = 2\n")
    (E / "gone" / "file").unlink()
    (E / "gone").rmdir()
    assert run("print(until(lambda: (E / 'module.py').read_text() == 'V = 2\\n'))").out == "True"
    assert run("print(until(lambda: not (E / 'gone').exists()))").out == "True"

    # what the session has changed itself is its own
    run("(E / 'module.py').write_text('V = 3\\n')\n%checkpoint own")
    replace(E / "module.py", "V = 4\n")
    replace(E / "data", "newer")
    assert run("print(until(lambda: (E / 'data').read_text() == 'newer'))").out == "True"
    assert run("print((E / 'module.py').read_text())").out == "V = 3"
    # and a restore makes no difference to that
    run("%restore own")
    assert (
        run("print((E / 'module.py').read_text(), (E / 'data').read_text())").out == "V = 3\n newer"
    )
