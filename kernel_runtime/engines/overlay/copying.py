"""Exact copies of a layer, telling whether one has changed, and copying out to the host."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kernel_runtime.engines.overlay.entries import Copier, made_whole, set_attributes
from kernel_runtime.engines.overlay.markers import Markers, all_attributes
from kernel_runtime.engines.overlay.paths import Shortener

AnyPath = str | bytes | Path


def copy_tree(source: AnyPath, target: AnyPath, markers: Markers) -> None:
    """Copy a layer's files, or one file or symlink, to a name that does not exist.

    Everything is as it was: modes, owners, times, extended attributes under their stored names
    (the kernel's notes too), whiteouts, hard links within, holes. Blocks are shared where the
    filesystem can. The target is there whole or not at all. Raises OSError, FileExistsError; a
    source that is being changed may give FileNotFoundError, or a mixture.
    """
    del markers  # a copy says what the original says, whoever reads it
    with made_whole(os.fsencode(target)) as unfinished:
        _copy(os.fsencode(source), unfinished)


def copy_file(source: AnyPath, target: AnyPath, markers: Markers) -> None:
    """Copy one thing that is not a directory, as copy_tree() does. Raises OSError."""
    found = os.lstat(source)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(source)
    copy_tree(source, target, markers)


def _copy(source: bytes, target: bytes) -> None:
    found = os.lstat(source)
    copier = Copier()
    if not stat.S_ISDIR(found.st_mode):
        copier.copy(source, target, found)
        return
    short = Shortener()
    try:
        os.mkdir(target, 0o700)
        todo = [(source, target, found, sorted(os.listdir(source), reverse=True))]
        while todo:
            at, to, like, names = todo[-1]
            if not names:
                # What was put in has changed its times, and its mode may forbid to put in more.
                set_attributes(to, like, all_attributes(at))
                todo.pop()
                continue
            name = names.pop()
            below, made = at + b"/" + name, to + b"/" + name
            found = os.lstat(below)
            if stat.S_ISDIR(found.st_mode):
                os.mkdir(made, 0o700)
                below, made = short(below), short(made)
                todo.append((below, made, found, sorted(os.listdir(below), reverse=True)))
            else:
                copier.copy(below, made, found)
    finally:
        short.close()
