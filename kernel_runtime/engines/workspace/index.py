"""What is known of the files, kept from one run of the supervisor to the next.

Without it, the first capture of a session would read every file again. It holds only files
whose stat proves that they are unchanged, and it is believed only where the store still has
the content. A file that is missing or damaged costs time, nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from kernel_runtime.engines.workspace.state import Known
from kernel_runtime.engines.workspace.tree import TreeDamaged, decode_row, encode_row
from kernel_runtime.store.blobs import BlobStore

_FORMAT: Final = 1
_PURPOSE: Final = "workspace index"


def save_index(file: Path, known: Iterable[Known], store: BlobStore) -> None:
    """Write the index, sealed where the store is encrypted. Raises OSError."""
    rows = [[list(one.key), one.links, encode_row(one.entry)] for one in known if one.trusted]
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = file.with_suffix(".new")
    fd = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    text = json.dumps({"format": _FORMAT, "files": rows}, separators=(",", ":"))
    with open(fd, "wb") as out:
        out.write(store.seal(text.encode("ascii"), _PURPOSE))
    os.replace(temporary, file)


def load_index(file: Path, store: BlobStore) -> dict[int, Known]:
    """Known files by inode number; empty if there is no index that can be read."""
    known: dict[int, Known] = {}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, TreeDamaged):
        value: dict[str, Any] = json.loads(store.unseal(file.read_bytes(), _PURPOSE))
        if value["format"] != _FORMAT:
            return {}
        for key, links, row in value["files"]:
            entry = decode_row(row)
            if entry.held or not all(store.has(digest, n) for _, n, digest in entry.chunks):
                continue
            dev, ino, size, mtime, ctime, mode = key
            known[ino] = Known(entry, (dev, ino, size, mtime, ctime, mode), links, True, 0)
    return known
