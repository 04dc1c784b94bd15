"""Run the suite of states over engines and write what came of it into docs/engines.md.

python scripts/statestable.py ENGINE...

fork, image and dmtcp as an ordinary user, criu as root, as the tests run them; other columns stay.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.conftest import kernels
from tests.states import table
from tests.states.suite import WAYS, Course


def column(engine: str, folder: Path) -> dict[str, str]:
    """The outcome for each program. Leaves everything in that folder."""
    work = folder / "work"
    work.mkdir()
    (work / "n.ipynb").write_text("{}")
    document = {"cwd": work, "env": {"JPY_SESSION_NAME": str(work / "n.ipynb")}}
    with pytest.MonkeyPatch.context() as patch, kernels(folder, patch) as start:
        found = Course(WAYS[engine], start, document).run_all()
    for name, outcome in sorted(found.items()):
        if outcome.text:
            print(f"{engine}: {name}: {outcome.kind}: {outcome.text}")
    return {name: outcome.shown for name, outcome in found.items()}


def main(engines: list[str]) -> None:
    for engine in engines:
        if why := WAYS[engine].missing():
            print(f"{engine}: {why}")
            continue
        with tempfile.TemporaryDirectory(prefix="states", ignore_cleanup_errors=True) as folder:
            table.write({engine: column(engine, Path(folder))})


if __name__ == "__main__":
    main(sys.argv[1:] or ["fork", "image"])
