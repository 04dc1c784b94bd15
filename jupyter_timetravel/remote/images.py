"""Process images that were fetched, put into the store."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kernel_runtime.store.image_moving import place
from kernel_runtime.store.images import ImageStore


def place_all(store: Path, fetched: Path, refs: Iterable[str]) -> None:
    """fetched: has a directory for each image. refs: those that checkpoints name; the others only
    lend them their page files, and come first. Raises ImageNotStored, KeyUnusable."""
    images, named = ImageStore(store), set(refs)
    there = {path.name for path in fetched.iterdir()} if fetched.is_dir() else set()
    for ref in [*sorted(there - named), *sorted(there & named)]:
        place(images, ref, fetched / ref)
