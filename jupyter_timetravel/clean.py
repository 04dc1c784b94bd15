"""A notebook of the cells that lead from a fresh kernel to a state, and whether it does so.

The notebook is plain nbformat 4.5 and is written without nbformat; trying it out needs nbclient.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from kernel_runtime.timeline.plain_notebook import CellData, CleanExportRefused, notebook_of
from kernel_runtime.timeline.report import summary_text
from kernel_runtime.timeline.text import one_line, plural
from kernel_runtime.timeline.variables import diff

_SHOWN: Final = 20


def write(path: Path, notebook: Mapping[str, Any], *, force: bool) -> None:
    """Write it, whole or not at all. Raises CleanExportRefused: there is a file and not force."""
    if path.suffix != ".ipynb":
        raise CleanExportRefused(f"{path} does not end with .ipynb. Nothing was written.")
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    data = text.encode("utf-8", "backslashreplace")
    try:
        if not force:
            with open(path, "xb") as file:
                file.write(data)
            return
        name = path.parent / f".{path.name}.{uuid.uuid4().hex}"
        try:
            with open(name, "xb") as file:
                file.write(data)
            os.replace(name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
    except FileExistsError:
        raise CleanExportRefused(
            f"{path} exists. Nothing was written; choose another name, or replace it with --force."
        ) from None
    except OSError as error:
        raise CleanExportRefused(f"{path} cannot be written: {error}.") from error


def check(path: Path, present: Mapping[str, Any]) -> str:
    """Run a notebook in a stock kernel; say which variables come out unlike ``present``.

    present: summaries with fingerprints. It runs in the notebook's folder, and does all that the
    cells do. Raises CleanExportRefused if it cannot be run to its end.
    """
    root = str(Path(__file__).resolve().parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_timetravel.clean_check", str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        answer = {"error": last}
    if "error" in answer:
        raise CleanExportRefused(f"{path} was written, but not checked: {answer['error']}")
    found = answer["variables"]
    return _told(diff(_comparable(present), _comparable(found)), len(found))


def _comparable(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Summaries without what differs from process to process."""
    kept = {}
    for name, summary in variables.items():
        prints = {k: v for k, v in (summary.get("fingerprint") or {}).items() if k != "id"}
        kept[name] = {**summary, "fingerprint": prints}
    return kept


def _told(differences: Mapping[str, Sequence[Mapping[str, Any]]], count: int) -> str:
    lines = [
        *(f"  only here: {one['name']}" for one in differences["removed"]),
        *(f"  only there: {one['name']}" for one in differences["added"]),
    ]
    for one in differences["changed"]:
        here, there = summary_text(one["before"]), summary_text(one["after"])
        told = f"here {here}, there {there}" if here != there else f"{here} (its content differs)"
        lines.append(f"  {one_line(one['name'], 60)}: {told}")
    if not lines:
        return f"checked in a stock kernel: {plural(count, 'variable')}, as far as is seen as here"
    more = [f"  … and {len(lines) - _SHOWN:,} more"] if len(lines) > _SHOWN else []
    head = f"checked in a stock kernel: {plural(len(lines), 'variable')} differ"
    return "\n".join([head, *lines[:_SHOWN], *more])


def export(
    path: Path,
    cells: Sequence[CellData],
    present: Mapping[str, Any] | None,
    *,
    force: bool,
) -> str:
    """Write a notebook, check it if ``present`` is given, and tell what was done."""
    notebook = notebook_of(cells)
    write(path, notebook, force=force)
    lines = [f"wrote {path}: {plural(len(notebook['cells']), 'cell')}"]
    if present is not None:
        lines.append(check(path.absolute(), present))
    return "\n".join(lines)
