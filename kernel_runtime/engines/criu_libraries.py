"""The libraries that a process to be dumped has mapped, and the descriptors that a restore gets.

CRIU neither looks for them nor keeps them: to it they are *external*, known by mount and inode, and
a restore is given descriptors for these names. So an image is not larger than the memory that the
process has written, and what was replaced or deleted since is there still, as a copy in the store.

Their digests are found while CRIU dumps. The copies that the store lacks are made afterwards, from
the descriptors: nobody waits for them but whoever ends the engine.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Final, NamedTuple

from kernel_runtime import linux
from kernel_runtime.engines.mapped_files import FileDigests
from kernel_runtime.store.dumps import NO_COPY, DumpStore
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.image_model import FileInUse, ImageDamaged, ImageUnusable
from kernel_runtime.store.libraries import CopyingEnded, Libraries, OpenFile

_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC
_LEAST: Final = 256 << 10
"""Bytes of a library, as native/parked.c has it."""


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
        self.missing: list[OpenFile] = []
        """Those of which the store has no copy."""
        names: set[str] = set()
        for place, path in _places(proc):
            fd = os.open(f"{proc}/map_files/{place}", _FLAGS)
            stack.callback(os.close, fd)
            found = os.fstat(fd)
            name = f"file[{_mount(fd):x}:{found.st_ino:x}]"
            if name in names:  # an overlay over several filesystems can give an inode twice
                raise OSError(errno.ENOTUNIQ, f"{path} cannot be told from another library")
            names.add(name)
            self._found.append((Library(name, _in_use(path, found)), fd))

    @property
    def names(self) -> list[str]:
        return [library.name for library, _ in self._found]

    def hash(self, digests: FileDigests, libraries: Libraries) -> list[Library]:
        """Return them with their digests; `missing` is known then. Blocks. Raises OSError."""
        found = []
        for library, fd in self._found:
            digest = digests.of(library.file, fd)
            found.append((library._replace(file=library.file.with_digest(digest)), fd))
        self.missing = libraries.missing([(fd, library.file) for library, fd in found])
        if not self.missing:
            digests.save()  # else with the copies
        return [library for library, _ in found]


class Hashing:
    """Finds the digests of the libraries of a process that is being dumped, in a thread."""

    def __init__(self, proc: str | None, digests: FileDigests) -> None:
        """proc: the directory in /proc of the process of which that one will be a clone, if it is
        there: what is likely to be a library of both is read from now on."""
        self._digests = digests
        self._stack = ExitStack()
        self._thread = ThreadPoolExecutor(1, "library-digests")
        if proc is not None:
            self._thread.submit(self._begin, proc)
        self._result: Future[list[Library]] | None = None

    def _begin(self, proc: str) -> None:
        with suppress(OSError):  # those of the clone count
            for place, path in _places(proc, "r-xp"):
                fd = os.open(f"{proc}/map_files/{place}", _FLAGS)
                try:
                    if (found := os.fstat(fd)).st_size >= _LEAST:
                        self._digests.of(_in_use(path, found), fd)
                finally:
                    os.close(fd)

    def of(self, proc: str, libraries: Libraries) -> MappedLibraries:
        """The libraries of the clone, which are open until `close`. Raises OSError."""
        mapped = MappedLibraries(self._stack, proc)
        self._result = self._thread.submit(mapped.hash, self._digests, libraries)
        return mapped

    def result(self) -> list[Library]:
        """They, with their digests. Blocks. Raises OSError."""
        assert self._result is not None
        return self._result.result()

    def close(self) -> None:
        """Blocks until nothing is read any more."""
        self._thread.shutdown()
        self._stack.close()


class Copies:
    """Makes the copies that a store lacks, one image's after the other's, in a thread.

    Of the usual priority: at a lower one, where cells keep all processors busy, it had the lock of
    Python's interpreter when it had no processor, and the supervisor answered 36 ms late (5).
    """

    def __init__(self, store: DumpStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, "library-copies")
        self._ended = threading.Event()
        self._making: set[asyncio.Future[str]] = set()

    @property
    def are_made(self) -> bool:
        """Whether none is under way."""
        return not self._making

    def begin(self, files: Sequence[OpenFile]) -> asyncio.Future[str]:
        """Have copies made of files that the caller may close; why they are not, "" at best."""
        loop = asyncio.get_running_loop()
        with ExitStack() as stack:
            ours: list[OpenFile] = []
            try:
                for fd, file in files:
                    ours.append((os.dup(fd), file))
                    stack.callback(os.close, ours[-1][0])
            except OSError as error:
                refused: asyncio.Future[str] = loop.create_future()
                refused.set_result(error.strerror or str(error))
                return refused
            making = loop.run_in_executor(self._thread, self._make, ours, stack.pop_all())
        self._making.add(making)
        making.add_done_callback(self._making.discard)
        return making

    def _make(self, files: Sequence[OpenFile], stack: ExitStack) -> str:
        with stack:
            try:
                self._store.copy_libraries(files, lambda: not self._ended.is_set())
            except CopyingEnded:
                return "the kernel ended before that"
            except OSError as error:
                return error.strerror or str(error)
            except StoreError as error:
                return str(error)
        return ""

    async def made(self, timeout: float | None = None) -> None:
        """Wait for those under way."""
        if self._making:
            await asyncio.wait(set(self._making), timeout=timeout)

    async def close(self, timeout: float) -> None:
        """Likewise, so many seconds at most; what is not made by then is left to later images."""
        await self.made(timeout)
        self._ended.set()
        self._thread.shutdown(wait=False)


def _in_use(path: str, found: os.stat_result) -> FileInUse:
    return FileInUse(path, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _places(proc: str, mode: str = "p") -> Iterator[tuple[str, str]]:
    """For each file that is mapped privately, where it is first: the name below map_files; path.

    mode: how that of the mapping ends.
    """
    seen: set[tuple[str, str]] = set()
    with open(f"{proc}/maps", errors="surrogateescape") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(None, 5)
            if len(fields) < 6 or not fields[5].startswith("/") or not fields[1].endswith(mode):
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
    store's copy. Raises ImageUnusable.

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
            except FileNotFoundError as error:
                raise ImageUnusable(ref, f"{library.file.path}, {NO_COPY}") from error
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
