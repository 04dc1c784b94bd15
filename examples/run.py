"""Run example notebooks as a person would, and tell what happened, with the times.

    python examples/run.py [NOTEBOOK …] [--kernel NAME] [--save DIRECTORY]

Each notebook is executed by nbclient in a folder of its own, so that nothing here changes. The time
beside a cell is what a client sees: from sending it to the kernel being idle again.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
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


def run(notebook: Path, kernel: str | None, save: Path | None) -> bool:
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
            client.execute()
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
    results = [run(notebook, args.kernel, args.save) for notebook in args.notebooks]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
