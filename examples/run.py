"""Run example notebooks as a person would, and tell what happened, with the times.

    python examples/run.py [NOTEBOOK …] [--kernel NAME] [--save DIRECTORY]

Each notebook is executed by nbclient in a folder of its own, with a home directory and a store of
its own, so that nothing here changes: that is checked, for that home and for the Python environment
that this program runs from, by a full listing with digests before and after. The time beside a cell
is what a client sees: from sending it to the kernel being idle again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
from listing import differences, listing
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).parent
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
INDENT = " " * 11
CELL_TIMEOUT_S = 120
LONGEST_OUTPUT = 18  # lines of one cell that are shown


def output_text(output: dict[str, Any]) -> str:
    """One output of a cell as text; pictures by what they are."""
    kind = output["output_type"]
    if kind == "stream":
        return str(output["text"])
    if kind == "error":
        return f"{output['ename']}: {output['evalue']}"
    data = output["data"]
    if "image/png" in data:
        return "[a picture]"
    return str(data.get("text/plain", ""))


class Story:
    """Prints a notebook while it runs. Its methods are nbclient's hooks, called for code cells."""

    def __init__(self, cells: Sequence[Any]) -> None:
        self.cells = cells
        self.told = 0  # cells before this one have been printed
        self.started = 0.0

    def on_cell_execute(self, cell: Any, cell_index: int) -> None:
        for earlier in self.cells[self.told : cell_index]:
            if earlier.cell_type == "markdown":
                self.tell(earlier.source)
        self.told = cell_index + 1
        self.started = time.perf_counter()

    def tell(self, markdown: str) -> None:
        print()
        for line in filter(None, markdown.splitlines()):
            print(f"== {line.lstrip('# ')}" if line.startswith("#") else textwrap.fill(line, 96))

    def on_cell_executed(self, cell: Any, cell_index: int, execute_reply: Any) -> None:
        took_ms = 1000 * (time.perf_counter() - self.started)
        code = [line for line in cell.source.splitlines() if line.strip()]
        print(f"{took_ms:7.0f} ms  > {code[0]}" + (" …" if len(code) > 1 else ""))
        text = COLOUR.sub("", "\n".join(output_text(output).rstrip() for output in cell.outputs))
        lines = text.splitlines()
        for line in lines[:LONGEST_OUTPUT]:
            print(f"{INDENT}{line}")
        if len(lines) > LONGEST_OUTPUT:
            print(f"{INDENT}… {len(lines) - LONGEST_OUTPUT} more lines")


@contextlib.contextmanager
def own_home() -> Iterator[tuple[Path, dict[str, str]]]:
    """A home directory that may be lost, and the environment variables of kernels that have it.

    It lies in the user's own, as /tmp is not covered by time travel.
    """
    with tempfile.TemporaryDirectory(prefix=".timetravel-example-", dir=Path.home()) as made:
        home = Path(made) / "home"
        home.mkdir(mode=0o700)
        (home / "letters").mkdir()
        (home / "letters" / "first.txt").write_text("do not lose this\n")
        environment = {
            **os.environ,
            "HOME": str(home),
            "TIMETRAVEL_EXAMPLE_HOME": str(home),  # for the notebooks: this one may be deleted
            "JUPYTER_TIMETRAVEL_STORE": f"{made}/store",
            "JUPYTER_TIMETRAVEL_KEYS": f"{made}/keys",
            "IPYTHONDIR": f"{made}/ipython",
            "JUPYTER_RUNTIME_DIR": f"{made}/runtime",
            "MPLCONFIGDIR": f"{made}/matplotlib",
            "PYTHONDONTWRITEBYTECODE": "1",  # the supervisor's own imports
        }
        try:
            yield home, environment
        finally:
            _let_go(Path(made))


def _let_go(made: Path) -> None:
    """Layers of the store may hold directories that forbid to be removed."""
    for parent, names, _ in os.walk(made):
        for path in (os.path.join(parent, name) for name in names):
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    shutil.rmtree(made / "store", ignore_errors=True)


def run(notebook: Path, kernel: str | None, save: Path | None, environment: dict[str, str]) -> bool:
    """Execute one notebook and tell its story; say whether every cell did what it should."""
    document = nbformat.read(notebook, as_version=4)
    story = Story(document.cells)
    with tempfile.TemporaryDirectory(prefix="timetravel-example-") as folder:
        client = NotebookClient(
            document,
            timeout=CELL_TIMEOUT_S,
            kernel_name=kernel or document.metadata.kernelspec.name,
            resources={"metadata": {"path": folder}},
            on_cell_execute=story.on_cell_execute,
            on_cell_executed=story.on_cell_executed,
        )
        try:
            client.execute(env=environment)
        except CellExecutionError as error:
            print(f"\n{notebook.name}: a cell failed.\n{error}", file=sys.stderr)
            return False
        finally:
            if save is not None:
                save.mkdir(parents=True, exist_ok=True)
                nbformat.write(document, save / notebook.name)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("notebooks", nargs="*", type=Path, default=[FOLDER / "demo.ipynb"])
    parser.add_argument("--kernel", help="a kernel other than the one that the notebook names")
    parser.add_argument("--save", type=Path, help="write the executed notebooks into this folder")
    args = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with own_home() as (home, environment):
        watched = (Path(sys.prefix), home)
        before = listing(*watched)
        results = [run(path, args.kernel, args.save, environment) for path in args.notebooks]
        changed = differences(before, listing(*watched))
    print("\n== Has this machine changed?")
    print(
        f"{len(before)} files and folders of {watched[0]} and of the home directory of these "
        "notebooks were listed before and after, with digests of their content: "
        + (f"{len(changed)} differ." if changed else "nothing differs.")
    )
    for path in changed[:LONGEST_OUTPUT]:
        print(f"{INDENT}{path}")
    return 0 if all(results) and not changed else 1


if __name__ == "__main__":
    sys.exit(main())
