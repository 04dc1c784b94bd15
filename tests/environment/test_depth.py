"""Many cells that each write outside of the workspace: stacks stay short, nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernel_runtime.engines.overlay.engine import DEEP
from tests.waiting import until

CELLS = 2 * DEEP + 20


def test_a_hundred_cells_that_write_to_the_home_directory(
    start: Any, home: Path, tmp_path: Path
) -> None:
    notebook = start()
    notebook.run("import os; H = os.path.expanduser('~'); os.mkdir(H + '/d')")
    numbers = {}
    for count in range(CELLS):
        notebook.run(
            f"open(H + '/d/f{count % 7}', 'a').write('{count},'); x = {count}\n"
            f"open(H + '/last', 'w').write('{count}')"
        )
        numbers[count] = notebook.head()["number"]
    until(lambda: notebook.command("status")["environment"]["layers"] < DEEP)
    mounts = notebook.run("print(open('/proc/self/mounts').read().count('timetravel '))").out
    assert int(mounts) < 200
    for count in (3, DEEP - 1, CELLS - 30, CELLS - 1, 10):
        notebook.command("restore", checkpoint=numbers[count])
        code = "print(x, open(H + '/last').read(), sorted(os.listdir(H + '/d')))"
        names = [f"f{n}" for n in range(min(7, count + 1))]
        assert notebook.run(code).out.strip() == f"{count} {count} {names}"
        for name in range(min(7, count + 1)):
            wanted = "".join(f"{c}," for c in range(name, count + 1, 7))
            assert notebook.run(f"print(open(H + '/d/f{name}').read())").out.strip() == wanted
    assert not (home / "d").exists()
