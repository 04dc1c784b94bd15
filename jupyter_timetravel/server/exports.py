"""Exports: a timeline as one file, or the cells that lead to a checkpoint as a notebook.

The file is written below the server's root directory, or into a temporary one that is sent.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from jupyter_timetravel import clean
from jupyter_timetravel.exchange.errors import ExportRefused
from jupyter_timetravel.exchange.writing import Exporter
from jupyter_timetravel.offline import stored
from jupyter_timetravel.server import store as stores
from kernel_runtime.errors import BadRequest
from kernel_runtime.timeline.cells import from_fresh
from kernel_runtime.timeline.names import Spec
from kernel_runtime.timeline.text import one_line, plural, size_text

_WRITTEN_S: Final = 10.0
_LOOK_S: Final = 0.1
SUFFIXES: Final = {"timeline": ".ttl", "notebook": ".ipynb"}


def target_below(root: str, path: str, format: str, *, hidden: bool, force: bool) -> Path:
    """Where a path of the server's is on the disk. Raises BadRequest, ExportRefused.

    hidden: whether names that begin with a dot are allowed.
    """
    parts = path.strip("/").split("/")
    if not root:
        raise BadRequest("This server has no directory of files. Nothing was written.")
    if "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise BadRequest(
            f"{path[:200]!r} is no path below the server's directory. Nothing was written; give "
            "one such as exports/a.ttl."
        )
    if not hidden and any(part.startswith(".") for part in parts):
        raise BadRequest(f"{path[:200]!r} is hidden, which this server forbids.")
    if not parts[-1].endswith(SUFFIXES[format]):
        raise BadRequest(f"{path[:200]!r} must end with {SUFFIXES[format]}. Nothing was written.")
    top = os.path.realpath(root)
    folder = os.path.realpath(os.path.join(top, *parts[:-1]))
    try:
        if folder != top and not folder.startswith(top.rstrip("/") + "/"):
            raise BadRequest(f"{path[:200]!r} leads out of the server's directory.")
        if not os.path.isdir(folder):
            raise BadRequest(f"The directory of {path[:200]!r} is not there. Make it first.")
        target = Path(folder, parts[-1])
        if os.path.islink(target) or (os.path.lexists(target) and not force):
            raise ExportRefused(
                f"{path[:200]!r} is there already. Nothing was written; choose another name, or "
                "force."
            )
    except (OSError, ValueError) as error:
        raise BadRequest(f"{path[:200]!r} cannot be a file here: {error}") from error
    return target


@contextmanager
def temporary(format: str) -> Iterator[Path]:
    """A place for a file that is sent and then deleted."""
    with tempfile.TemporaryDirectory(prefix="timetravel-") as folder:
        yield Path(folder, f"export{SUFFIXES[format]}")


def wait_for(id: str, checkpoints: Iterable[str]) -> None:
    """Wait until a running kernel has written these checkpoints into the store, but not for ever.

    A checkpoint is made before it is written; what is exported is what is written.
    """
    wanted = set(checkpoints)
    for _ in range(int(_WRITTEN_S / _LOOK_S)):
        with stores.opened() as store:
            if wanted <= {one.id for one in store.look_at(stores.find(store, id).id)}:
                return
        time.sleep(_LOOK_S)


def write(
    id: str,
    target: Path,
    *,
    format: str = "timeline",
    checkpoint: Spec | None = None,
    environment: bool = True,
) -> Mapping[str, Any]:
    """Write the file, whole or not at all; what to tell. id: of a timeline.

    Raises ExportRefused, CleanExportRefused, UnknownCheckpoint, NotTrusted.
    """
    with stores.opened() as store:
        info = stores.find(store, id)
        session = stored.look(store, info)
        timeline = session.timeline
        chosen = None if checkpoint is None else timeline.resolve(checkpoint)
        if format == "notebook":
            end = chosen or timeline.head
            cells = from_fresh(timeline, None if end is None else end.id)
            text = clean.export(target, [one.record() for one in cells], None, force=True)
            count = 0 if end is None else 1
            size = target.stat().st_size
            return {"path": None, "bytes": size, "checkpoints": count, "text": text}
        stored.refuse_untrusted(info)
        all_of_them = [chosen] if chosen is not None else [*timeline]
        if not all_of_them:
            raise ExportRefused(
                f"{one_line(session.notebook, 200)} has no checkpoint yet. No file was written; "
                "run a cell first."
            )
        size = Exporter(session, all_of_them, environment=environment).write(target)
        text = (
            f"{target.name}: {plural(len(all_of_them), 'checkpoint')}, {size_text(size)}. It holds "
            "files, values of variables, and whatever secrets were among them."
        )
        return {"path": None, "bytes": size, "checkpoints": len(all_of_them), "text": text}
