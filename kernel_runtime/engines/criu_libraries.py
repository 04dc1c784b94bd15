"""The libraries that a process to be dumped has mapped, and the descriptors that a restore gets.

CRIU neither looks for them nor keeps them: to it they are *external*, known by mount and inode, and
a restore is given descriptors for these names. So an image is not larger than the memory that the
process has written, and what was replaced or deleted since is there still, as a copy in the store.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Final, NamedTuple

from kernel_runtime import linux
from kernel_runtime.engines.mapped_files import FileDigests
from kernel_runtime.store.image_model import FileInUse, ImageDamaged
from kernel_runtime.store.libraries import Libraries

_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC


class Library(NamedTuple):
    """A file that a dumped process had mapped."""

    name: str
    """What CRIU calls it: ``file[MOUNT:INODE]``."""
    file: FileInUse


class MappedLibraries:
    """Those of one process, open; they can be read when it has ended."""

    def __init__(self, stack: ExitStack, proc: str) -> None:
        """proc: its directory in /proc. Raises OSError, also where two have one name."""
        self._found: list[tuple[Library, int]] = []
        names: set[str] = set()
        for place, path in _places(proc):
            fd = os.open(f"{proc}/map_files/{place}", _FLAGS)
            stack.callback(os.close, fd)
            found = os.fstat(fd)
            name = f"file[{_mount(fd):x}:{found.st_ino:x}]"
            if name in names:  # an overlay over several filesystems can give an inode twice
                raise OSError(errno.ENOTUNIQ, f"{path} cannot be told from another library")
            names.add(name)
            times = (found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            self._found.append((Library(name, FileInUse(path, *times)), fd))

    @property
    def names(self) -> list[str]:
        return [library.name for library, _ in self._found]

    def keep(self, digests: FileDigests, libraries: Libraries) -> list[Library]:
        """See that the store has them; returns them with their digests. Blocks.

        Raises OSError, StoreError.
        """
        kept = []
        for library, fd in self._found:
            digest = digests.of(library.file, fd)
            kept.append(library._replace(file=library.file.with_digest(digest)))
        fds = [fd for _, fd in self._found]
        libraries.keep([(fd, library.file.digest) for fd, library in zip(fds, kept)])
        digests.save()
        return kept


def _places(proc: str) -> Iterator[tuple[str, str]]:
    """For each file that is mapped privately, where it is first: the name below map_files; path."""
    seen: set[tuple[str, str]] = set()
    with open(f"{proc}/maps", errors="surrogateescape") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(None, 5)
            if len(fields) < 6 or not fields[5].startswith("/") or not fields[1].endswith("p"):
                continue
            if (fields[3], fields[4]) not in seen:
                seen.add((fields[3], fields[4]))
                start, end = (int(number, 16) for number in fields[0].split("-"))
                yield f"{start:x}-{end:x}", fields[5]


def _mount(fd: int) -> int:
    with open(f"/proc/self/fdinfo/{fd}") as file:
        return int(next(line for line in file if line.startswith("mnt_id:")).split()[1])


@contextmanager
def opened(
    ref: str, wanted: Sequence[Library], root: str, libraries: Libraries
) -> Iterator[dict[str, int]]:
    """A descriptor for each name: of the session's own file, if it is the same still, else of the
    store's copy. Raises ImageDamaged.

    root: the root directory of the sandbox.
    """
    with ExitStack() as stack:
        fds: dict[str, int] = {}
        missing = []
        for library in wanted:
            fd = _same(library.file, root)
            if fd is None:
                missing.append(library)
                continue
            stack.callback(os.close, fd)
            fds[library.name] = fd
        directory = _read_only(libraries, stack) if missing else None
        for library in missing:
            try:
                fds[library.name] = fd = libraries.open(library.file.digest, directory)
            except OSError as error:
                why = f"{library.file.path} was replaced, and the copy of it cannot be used"
                raise ImageDamaged(ref, f"{why}: {error.strerror}") from error
            stack.callback(os.close, fd)
        yield fds


def _same(file: FileInUse, root: str) -> int | None:
    with suppress(OSError):
        fd = os.open(root + file.path, _FLAGS | os.O_NONBLOCK)
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode) and file.is_same(found):
            return fd
        os.close(fd)
    return None


def _read_only(libraries: Libraries, stack: ExitStack) -> int | None:
    """A mount by which a cell of root's cannot write to the copies; None where there can be none.

    See ``image.keep_out_of_reach``.
    """
    with suppress(OSError):
        flags = linux.OPEN_TREE_CLONE | linux.OPEN_TREE_CLOEXEC
        mount = linux.open_tree(str(libraries.path), flags)
        stack.callback(os.close, mount)
        linux.make_read_only(mount)
        return mount
    return None
