"""What a stored process image is to those who use it, and what can be wrong with one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import field, replace
from typing import Any, Final

from kernel_runtime.later import dataclass
from kernel_runtime.store.digests import Digest
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.image_format import Plan
from kernel_runtime.store.image_pages import Known

PAGE_FILE: Final = "pages.ttpages"  # the suffix is known to native/image_list.c


class ImageNotStored(StoreError):
    """A process image could not be written; the session and its frozen process are as they were."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"The process image could not be written: {cause}. Nothing of it is kept; the session "
            "runs on, and other checkpoints are not affected. The next checkpoint tries again."
        )


class ImageUnusable(StoreError):
    """A process image cannot be loaded here: nothing of it was mapped or run."""

    def __init__(self, ref: str, cause: str) -> None:
        super().__init__(
            f"The process image {ref[:12]} cannot be used: {cause}. Nothing of it was loaded. "
            "Other captures of the checkpoint and other checkpoints are not affected."
        )


class ImageDamaged(ImageUnusable):
    """A file of a process image is missing or not what was written: nothing of it was loaded."""


@dataclass(frozen=True)
class FileInUse:
    """A file that an image refers to by its path, as it was when the image was written."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    digest: str = ""

    def is_same(self, found: os.stat_result) -> bool:
        """Whether nobody has written to it or replaced it since, as far as times tell."""
        return (found.st_size, found.st_mtime_ns, found.st_ctime_ns) == (
            self.size,
            self.mtime_ns,
            self.ctime_ns,
        )

    def with_digest(self, digest: str) -> FileInUse:
        return replace(self, digest=digest)


FileDigests = Callable[[FileInUse], str]
"""Returns the digest of a file that is still the same. Raises OSError."""


@dataclass(frozen=True)
class Written:
    """What came of `ImageStore.take_in`."""

    ref: Digest
    bytes: int
    """Of memory that the image holds."""
    stored_bytes: int
    """Added to the store."""


@dataclass
class OpenImage:
    """An authentic image, its page files open."""

    ref: Digest
    manifest: dict[str, Any]
    plan: bytes
    page_files: list[int] = field(default_factory=list)

    @property
    def sealed(self) -> list[Known]:
        """What is known of each of its page files where they are sealed, else nothing."""
        return [Known(*one) for one in self.manifest.get("sealed", ())]

    @property
    def files(self) -> list[FileInUse]:
        """The files that it refers to by their paths."""
        return [FileInUse(*values) for values in self.manifest["files"]]

    def parsed(self) -> Plan:
        """The plan, understood."""
        return Plan.decode(self.plan, self.manifest["head"])

    def open_again(self, directory: int) -> None:
        """Open the page files below another descriptor of the store's directory of images.

        Raises OSError; then they are as they were.
        """
        fds: list[int] = []
        try:
            for name, old in zip(self.manifest["page_files"], self.page_files):
                path = f"{name or self.ref}/{PAGE_FILE}"
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
                fds.append(fd)
                if not os.path.samestat(os.fstat(fd), os.fstat(old)):
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        except OSError:
            for fd in fds:
                os.close(fd)
            raise
        self.close()
        self.page_files = fds

    def without_lazy(self) -> None:
        """Have everything read, and nothing mapped."""
        plan = self.parsed()
        plan.runs = [run._replace(lazy=0) for run in plan.runs]
        self.plan = plan.encode()

    def close(self) -> None:
        """Let go of the page files. The second call does nothing."""
        while self.page_files:
            os.close(self.page_files.pop())

    def __enter__(self) -> OpenImage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
