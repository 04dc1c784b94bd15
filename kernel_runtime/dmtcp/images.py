"""What can be said of a checkpoint image without restarting it.

Stable since version 3 are the name, ``ckpt_PROGRAM_HOST-PID-TIME.dmtcp``, and the first line of the
file, ``DMTCP_CHECKPOINT_IMAGE_vN``; gzip wraps the whole file. What follows the first line changes
from version to version and is not read.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from kernel_runtime.dmtcp.errors import ImageUnreadable

SUFFIX: Final = ".dmtcp"

_NAME: Final = re.compile(r"ckpt_(.+)_([0-9a-f]+)-(\d+)-([0-9a-f]+)\.dmtcp")
_SIGNATURE: Final = re.compile(rb"DMTCP_CHECKPOINT_IMAGE_v(\d+(?:\.\d+)*)\n")
_HEAD_BYTES: Final = 64
_GZIP: Final = b"\x1f\x8b"
_SMALLEST: Final = 4096


@dataclass(frozen=True)
class ImageInfo:
    """One process in one checkpoint."""

    path: Path
    size: int
    """Bytes of the file."""
    written: datetime
    format: str
    """Version of the file's format, which is not that of DMTCP: ``4.0``."""
    compressed: bool
    program: str
    """As the process was called, cut by DMTCP; empty if the file was renamed."""
    host_id: str
    """Hexadecimal gethostid(3) of where the program was launched; empty as above."""
    pid: int
    """The process's id as it sees itself (DMTCP's virtual one); 0 as above."""
    unique_id: str
    """Host, pid and start: the same in each image of one process; empty as above."""


def inspect(path: Path) -> ImageInfo:
    """Read what an image says of itself. Raises ImageUnreadable, FileNotFoundError."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
        compressed = head.startswith(_GZIP)
        if compressed:
            with gzip.open(path) as unzipped:
                head = unzipped.read(_HEAD_BYTES)
        found = path.stat()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ImageUnreadable(path, f"it is damaged ({error})") from error
    match = _SIGNATURE.match(head)
    if match is None:
        raise ImageUnreadable(path, "it does not begin as images do")
    if found.st_size < _SMALLEST and not compressed:
        raise ImageUnreadable(path, f"it ends after {found.st_size} bytes")
    name = _NAME.fullmatch(path.name)
    program, host_id, pid, started = name.groups() if name else ("", "", "0", "")
    return ImageInfo(
        path=path,
        size=found.st_size,
        written=datetime.fromtimestamp(found.st_mtime, timezone.utc),
        format=match[1].decode(),
        compressed=compressed,
        program=program,
        host_id=host_id,
        pid=int(pid),
        unique_id=f"{host_id}-{pid}-{started}" if name else "",
    )


def images_in(directory: Path) -> list[Path]:
    """The complete images in a directory and in those below it, sorted. Others are ``.temp``."""
    return sorted(path for path in directory.rglob(f"*{SUFFIX}") if path.is_file())


def files_of(image: Path) -> Path:
    """The directory beside an image with the files that DMTCP has copied, if there are any.

    Open files that were deleted, or are mapped to be written. A restart looks for it in the
    directory that it is told to write images to (ckptdir), wherever the image is; without it no
    process comes up.
    """
    return image.with_name(image.name.removesuffix(SUFFIX) + "_files")


def total_bytes(paths: Iterable[Path]) -> int:
    """Bytes of all of them."""
    return sum(path.stat().st_size for path in paths)
