"""Notes beside a layer, made once, so that questions about it need no walk: ``index.json``.

A note that is missing or cannot be read is made again in memory: it is only a cache.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import uuid
from pathlib import Path
from typing import Any, Final, NamedTuple

from kernel_runtime.engines.overlay.changes import (
    Summary,
    Tally,
    Touched,
    is_opaque,
    touched,
)
from kernel_runtime.engines.overlay.markers import Markers
from kernel_runtime.engines.overlay.paths import Shortener, join, private
from kernel_runtime.engines.workspace.names import to_bytes, to_text

NAME: Final = "index.json"
_VERSION: Final = 1
_INFO: Final = (b".dist-info", b".egg-info", b".egg-link")
_CONDA: Final = b"conda-meta"
_DPKG: Final = b"lib/dpkg/status"
_PLAINLY_FILES: Final = (b".py", b".pyc", b".pyi", b".so", b".h", b".txt", b".json", b".js")
"""Directories are not called so: a deleted one of these held no packages."""


class Index(NamedTuple):
    """What a layer touches. Paths relative to its root, in bytes.

    info: entries by which a package manager knows a package. hiding: names that are deleted,
    opaque or symlinks, so that a directory with packages may have been there before. dpkg: files
    that are Debian's list of packages. summary: None if only names were looked at.
    """

    info: tuple[bytes, ...]
    hiding: tuple[bytes, ...]
    dpkg: tuple[bytes, ...]
    summary: Summary | None


def build_index(layer_dir: Path, markers: Markers) -> Index:
    """Look at ``layer_dir/files`` and write ``layer_dir/index.json``. Raises OSError."""
    tally, notes = Tally(), _Notes()
    for entry in touched(layer_dir / "files", markers):
        tally.add(entry)
        notes.add(entry)
    index = notes.index(tally.summary)
    _write(layer_dir, index)
    return index


def load_index(layer_dir: Path) -> Index | None:
    """What build_index() wrote; None if it is not there or not of this version."""
    try:
        found: dict[str, Any] = json.loads((layer_dir / NAME).read_bytes())
        if found["version"] != _VERSION:
            return None
        paths = {key: tuple(to_bytes(p) for p in found[key]) for key in ("info", "hiding", "dpkg")}
        return Index(**paths, summary=Summary(*map(int, found["summary"])))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def index_of(files: Path, markers: Markers) -> Index:
    """The notes of the layer whose files these are; read from the disk, or made for now.

    Then only names are looked at, and the summary is None. Raises OSError.
    """
    found = load_index(files.parent) if files.name == "files" else None
    return _scan(files, markers) if found is None else found


def is_info(path: bytes) -> bool:
    """Whether a path is by its name one by which a package manager knows a package."""
    parent, _, name = path.rpartition(b"/")
    if name.endswith(_INFO):
        return True
    return name.endswith(b".json") and parent.rpartition(b"/")[2] == _CONDA


class _Notes:
    def __init__(self) -> None:
        self._info: dict[bytes, None] = {}
        self._hiding: list[bytes] = []
        self._dpkg: list[bytes] = []

    def add(self, entry: Touched) -> None:
        path, mode = entry.path, entry.stat.st_mode
        if is_info(path):
            self._info[path] = None
        hides = entry.deleted or stat.S_ISLNK(mode)
        if entry.opaque or (hides and not path.endswith(_PLAINLY_FILES)):
            self._hiding.append(path)
        if path == _DPKG or path.endswith(b"/" + _DPKG):
            self._dpkg.append(path)

    def index(self, summary: Summary | None) -> Index:
        return Index(tuple(self._info), tuple(self._hiding), tuple(self._dpkg), summary)


def _scan(files: Path, markers: Markers) -> Index:
    notes, short = _Notes(), Shortener()
    todo = [(b"", os.fsencode(files))]
    try:
        while todo:
            path, real = todo.pop()
            with contextlib.suppress(PermissionError):  # chmod -R 000: it shows no package either
                todo += _scan_one(path, short(real), notes, markers)
    finally:
        short.close()
    return notes.index(None)


def _scan_one(
    path: bytes, real: bytes, notes: _Notes, markers: Markers
) -> list[tuple[bytes, bytes]]:
    """Look at one directory; return those in it."""
    below = []
    with os.scandir(real) as entries:
        for entry in entries:
            at = join(path, entry.name)
            if entry.is_dir(follow_symlinks=False):
                below.append((at, real + b"/" + entry.name))
                opaque = is_opaque(entry.path, markers)
                if opaque or is_info(at):
                    found = entry.stat(follow_symlinks=False)
                    notes.add(Touched(at, found, False, opaque))
            elif not entry.is_file(follow_symlinks=False) or _is_noted(at):
                found = entry.stat(follow_symlinks=False)
                deleted = markers.is_deletion(entry.path, found)
                notes.add(Touched(at, found, deleted, False))
    return below


def _is_noted(path: bytes) -> bool:
    return is_info(path) or path.endswith(_DPKG)


def _write(layer_dir: Path, index: Index) -> None:
    assert index.summary is not None
    text = json.dumps(
        {
            "version": _VERSION,
            "info": [to_text(path) for path in index.info],
            "hiding": [to_text(path) for path in index.hiding],
            "dpkg": [to_text(path) for path in index.dpkg],
            "summary": list(index.summary),
        }
    )
    unfinished = layer_dir / f".{NAME}.{uuid.uuid4().hex[:16]}.tmp"
    try:
        with open(unfinished, "w", encoding="ascii", opener=private) as file:
            file.write(text)
        os.replace(unfinished, layer_dir / NAME)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
