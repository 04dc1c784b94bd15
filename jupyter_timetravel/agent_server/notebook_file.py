"""Cells that an agent ran, appended to the notebook's file with their outputs.

Only where nobody else has the notebook: a front end that has it open holds cells that are on no
disk, and would write over the file or ask its user what to do. So nothing is written while another
program started the kernel, or while a Jupyter server has a session of the notebook. The file is
replaced in one step, and never if it was changed since it was read.
"""

from __future__ import annotations

import json
import os
import tempfile
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin

import nbformat
import psutil
from jupyter_core.paths import jupyter_runtime_dir

from jupyter_timetravel.agent_server.cells import Cell
from kernel_runtime.timeline.text import one_line

_ANSWER_S: Final = 5.0
_TRIES: Final = 5


class NotWritten(Exception):
    """Why the file was left alone; the cell is in the timeline."""


def append(path: Path, cell: Cell) -> None:
    """Add a cell that has ended. Raises NotWritten."""
    who = open_in(path)
    if who is not None:
        raise NotWritten(f"{who}; a page that has it open can insert the cell from its timeline")
    for _ in range(_TRIES):
        try:
            before = path.stat()
            notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
            _add(notebook, cell)
            text = nbformat.writes(notebook)  # type: ignore[no-untyped-call]
        except Exception as error:  # nbformat raises what it meets
            raise NotWritten(f"it cannot be read: {one_line(str(error), 200)}") from error
        try:
            if _replace(path, text, before):
                return
        except OSError as error:
            raise NotWritten(f"it cannot be written: {error.strerror}") from error
    raise NotWritten("another program writes it again and again")


def open_in(path: Path) -> str | None:
    """Who has a notebook open, as far as the user's Jupyter servers tell; None: nobody."""
    for server in _servers():
        name = f"the Jupyter server at {server.get('url', 'an unknown address')}"
        try:
            sessions = _sessions(server)
        except (OSError, ValueError) as error:
            return f"{name} does not say whether it has it open ({error})"
        root = str(server["root_dir"])
        paths = [os.path.realpath(os.path.join(root, str(one["path"]))) for one in sessions]
        if str(path) in paths:
            return f"{name} has it open"
    return None


def _servers() -> list[dict[str, Any]]:
    found = []
    for file in sorted(Path(jupyter_runtime_dir()).glob("jpserver-*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            told = json.loads(file.read_text())
            if psutil.pid_exists(int(told["pid"])):
                found.append(told)
    return found


def _sessions(server: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """Raises OSError, ValueError."""
    if server.get("sock"):
        raise OSError("it listens on a Unix socket")
    address = urljoin(str(server["url"]), "api/sessions")
    request = urllib.request.Request(address)
    if server.get("token"):
        request.add_header("Authorization", f"token {server['token']}")
    with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
        found: list[dict[str, Any]] = json.load(answer)
        return found


def _add(notebook: Any, cell: Cell) -> None:
    made = nbformat.v4.new_code_cell(  # type: ignore[no-untyped-call]
        cell.code,
        id=cell.cell_id,
        outputs=nbformat.from_dict(  # type: ignore[no-untyped-call]
            [
                {name: value for name, value in one.items() if name != "transient"}
                for one in cell.outputs
            ]
        ),
        execution_count=(cell.reply or {}).get("execution_count"),
    )
    if (notebook.nbformat, notebook.nbformat_minor) < (4, 5):
        del made["id"]
    notebook.cells.append(made)


def _replace(path: Path, text: str, before: os.stat_result) -> bool:
    """Whether the file was still the one that had been read."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        try:
            file.write(text if text.endswith("\n") else f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), before.st_mode & 0o7777)
            now = path.stat()
            if (now.st_ino, now.st_mtime_ns) != (before.st_ino, before.st_mtime_ns):
                os.unlink(file.name)
                return False
            os.replace(file.name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(file.name)
            raise
    return True
