"""Process images that leave a store, and those that come into one.

An image refers to page files of images before it; so what it needs is its own directory, and the
page file alone of each of the others.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from kernel_runtime.store.image_model import PAGE_FILE, ImageNotStored
from kernel_runtime.store.images import ImageStore
from kernel_runtime.store.leases import locked
from kernel_runtime.store.paths import sync

OWN: Final = ("manifest", "plan", "blocks", PAGE_FILE)


def files_of(store: ImageStore, ref: str) -> dict[str, Path]:
    """The files of an image, by ``<image>/<file>``. Raises ImageDamaged, NotAuthentic, NotTrusted,
    KeyUnusable: then it is not one that could be loaded."""
    manifest = store.manifest(ref)
    names = [f"{ref}/{name}" for name in OWN]
    names += [f"{owner}/{PAGE_FILE}" for owner in manifest["page_files"] if owner]
    return {name: store.path / name for name in names}


def place(store: ImageStore, ref: str, fetched: Path) -> None:
    """Put a directory with the files of one image, or its page file alone, into a store.

    fetched: on the store's disk; its content was verified. What the store has already stays. Call
    it with what an image refers to first, and commit the row that names the image within a minute.
    Raises ImageNotStored, KeyUnusable.
    """
    try:
        store.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(store.path, exclusive=False):
            target = store.path / ref
            if (target / "manifest").exists() or (
                not (fetched / "manifest").exists() and (target / PAGE_FILE).exists()
            ):
                return
            pages = target if (target / PAGE_FILE).exists() else fetched
            if pages is target:  # others refer to it already: its inode must stay
                for name in ("blocks", "plan", "manifest"):  # the manifest makes it an image
                    shutil.copyfile(fetched / name, target / f".{name}")
                    sync(target / f".{name}")
                    os.rename(target / f".{name}", target / name)
                sync(target)
                return
            for path in fetched.iterdir():
                path.chmod(0o600)
                sync(path)
            (fetched / "seal").write_bytes(store.seal(ref, os.stat(fetched / PAGE_FILE)))
            sync(fetched / "seal")
            sync(fetched)
            os.rename(fetched, target)
            sync(store.path)
    except OSError as cause:
        raise ImageNotStored(cause.strerror or str(cause)) from cause
