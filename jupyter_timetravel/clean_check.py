"""Run a notebook in a stock kernel and print what its variables are, as JSON.

A program of its own (``python -m jupyter_timetravel.clean_check FILE``), so that the user's
process gets neither nbclient nor its threads.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

KERNEL: Final = "python3"
_LOOK: Final = """
def _timetravel_look():
    import json, sys
    sys.path.insert(0, {root!r})
    try:
        from kernel_runtime.executor.variables import summarize
    finally:
        sys.path.remove({root!r})
    shell = get_ipython()
    found = dict(shell.user_ns)
    del found["_timetravel_look"]
    print(json.dumps(summarize(found, shell.user_ns_hidden, budget_s=5.0)))
_timetravel_look()
"""


def run(path: Path) -> dict[str, Any]:
    """The summaries. Raises RuntimeError with what to tell the user."""
    try:
        import nbformat
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError
    except ImportError as error:
        raise RuntimeError(
            f"--check needs nbclient ({error}): pip install nbclient nbformat"
        ) from None
    root = str(Path(__file__).resolve().parents[1])
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    look = nbformat.v4.new_code_cell(_LOOK.format(root=root))  # type: ignore[no-untyped-call]
    notebook.cells.append(look)
    client = NotebookClient(
        notebook,
        timeout=None,
        kernel_name=KERNEL,
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute()
    except CellExecutionError as error:
        failed = next(n for n, cell in enumerate(notebook.cells, 1) if _has_failed(cell))
        raise RuntimeError(f"its cell {failed} fails: {error.ename}: {error.evalue}") from None
    found: dict[str, Any] = json.loads(
        "".join(out["text"] for out in look.outputs if out.get("name") == "stdout")
    )
    return found


def _has_failed(cell: Any) -> bool:
    failed = any(out["output_type"] == "error" for out in cell.get("outputs", ()))
    return failed and "raises-exception" not in cell.metadata.get("tags", ())


def main() -> int:
    """Print ``{"variables": summaries}``, or ``{"error": why there are none}``."""
    answer: dict[str, Any]
    try:
        answer = {"variables": run(Path(sys.argv[1]))}
    except RuntimeError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
