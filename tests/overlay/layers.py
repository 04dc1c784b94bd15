"""Layers made by hand, from a few words."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kernel_runtime.engines.overlay.markers import Markers
from kernel_runtime.engines.overlay.stack import Stack

GONE = object()
"""A whiteout."""


class Opaque(dict[str, Any]):
    """A directory that shows nothing of the layers below."""


def fill(directory: Path, tree: dict[str, Any], markers: Markers) -> Path:
    """Make what a tree says: str or bytes a file, a dict a directory, a Path a symlink."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, what in tree.items():
        place = directory / name
        if what is GONE:
            markers.make_whiteout(os.fsencode(place))
        elif isinstance(what, dict):
            fill(place, what, markers)
            if isinstance(what, Opaque):
                markers.set_opaque(os.fsencode(place))
        elif isinstance(what, Path):
            place.symlink_to(what)
        else:
            place.write_bytes(what if isinstance(what, bytes) else what.encode())
    return directory


class Made:
    """Layers in a directory, newest last in the order of making."""

    def __init__(self, top: Path, markers: Markers) -> None:
        self.top, self.markers = top, markers
        self.layers: list[Path] = []

    def base(self, tree: dict[str, Any]) -> Path:
        return fill(self.top / "base", tree, self.markers)

    def layer(self, tree: dict[str, Any]) -> Path:
        """Put one more layer on top."""
        made = fill(self.top / f"layer{len(self.layers)}" / "files", tree, self.markers)
        self.layers.insert(0, made)
        return made

    def stack(self, count: int | None = None, **options: Any) -> Stack:
        """All layers, or the oldest few, over the base."""
        layers = self.layers if count is None else self.layers[len(self.layers) - count :]
        base = self.top / "base"
        return Stack(layers, base if base.exists() else None, self.markers, **options)


def shown(stack: Stack) -> dict[str, Any]:
    """The view as a flat dictionary: content of files, None for directories."""
    found: dict[str, Any] = {}
    for path, what in stack.walk():
        key = os.fsdecode(path)
        if what.is_directory:
            found[key] = None
        elif os.path.islink(what.real):
            found[key] = Path(os.fsdecode(stack.readlink(path)))
        elif os.path.isfile(what.real):
            found[key] = stack.read_bytes(path).decode()
        else:
            found[key] = what.stat.st_mode
    return found
