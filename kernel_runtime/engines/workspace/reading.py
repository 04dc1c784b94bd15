"""Reading one file: consistently, and with a note of whether its stat can be trusted later."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from dataclasses import field
from typing import Final

from kernel_runtime.engines.workspace import faults
from kernel_runtime.engines.workspace.access import Access, list_xattrs
from kernel_runtime.engines.workspace.content import ContentReader, ShortRead
from kernel_runtime.engines.workspace.filesystems import Trust, granularity_ns, trust_of
from kernel_runtime.engines.workspace.model import Chunk, Entry
from kernel_runtime.engines.workspace.state import Known, key_of, vouches
from kernel_runtime.engines.workspace.tree import make_entry
from kernel_runtime.later import dataclass
from kernel_runtime.store.blobs import BlobStore, digest_of

TOO_LARGE: Final = "too large to copy"

_RETRIES: Final = 3
_WORTH_WAITING: Final = 8 << 20


class Unstable(Exception):
    """The file kept changing; entry is the last reading, which may mix two versions."""

    def __init__(self, entry: Entry) -> None:
        super().__init__()
        self.entry = entry


@dataclass
class FileReader:
    """The means to read files of one tree, and what is to be told about them.

    copy_limit: bytes on disk from which a file is held whole instead of read. refused: by
    name, why extended attributes of the file read last are missing. young: what was read too
    soon after its last change to be trusted, and the monotonic time (ns) from which it can be,
    if no change is reported until then.
    """

    store: BlobStore
    content: ContentReader
    access: Access
    copy_limit: int
    refused: dict[bytes, str] = field(default_factory=dict)
    young: list[tuple[Known, int]] = field(default_factory=list)
    _trust: dict[int, Trust] = field(default_factory=dict)

    def read(
        self, dir_fd: int, name: bytes, found: os.stat_result, known: Known | None = None
    ) -> Known:
        """Read a regular file into the store. known: what it was at the last capture.

        Raises Unstable if it kept changing, FileNotFoundError if it is none any more, OSError
        if it cannot be read, BlobError if the store cannot be written.
        """
        opened = self.access.open_file(dir_fd, name)
        try:
            trust = self.trust(opened, found.st_dev)
            entry = None
            for _ in range(_RETRIES):
                before = os.fstat(opened)
                if not stat.S_ISREG(before.st_mode):
                    raise FileNotFoundError
                _wait_for_the_clock(trust, before)
                wall_ns, mono_ns = time.time_ns(), time.monotonic_ns()
                faults.point("read")
                if min(before.st_size, before.st_blocks * 512) > self.copy_limit:
                    return self._hold(dir_fd, name, opened)
                with contextlib.suppress(ShortRead):
                    chunks = self.content.read(opened, before.st_size, before.st_dev)
                    entry = self._entry(name, before, chunks, opened)
                    after = os.fstat(opened)
                    if key_of(before) == key_of(after):
                        return self._known(entry, after, trust, wall_ns, mono_ns, known)
            if entry is None:
                raise OSError(errno.EBUSY, "it kept getting shorter while it was read")
            raise Unstable(entry)
        finally:
            os.close(opened)

    def xattrs(self, name: bytes, fd: int) -> tuple[tuple[str, bytes], ...]:
        """Extended attributes of an open file or directory; notes those that are refused."""
        found, refused = list_xattrs(fd)
        if refused:
            self.refused[name] = f"extended attributes cannot be read: {', '.join(refused)}"
        return found

    def trust(self, fd: int, device: int) -> Trust:
        """How far the timestamps on a device (st_dev), of which fd is a file, can be trusted."""
        known = self._trust.get(device)
        if known is None:
            known = self._trust[device] = trust_of(fd)
        return known

    def _known(
        self,
        entry: Entry,
        after: os.stat_result,
        trust: Trust,
        wall_ns: int,
        mono_ns: int,
        known: Known | None,
    ) -> Known:
        key = key_of(after)
        seen_ns = known.seen_ns if known is not None and known.key == key else mono_ns
        trusted = vouches(trust, after.st_ctime_ns, seen_ns, wall_ns, mono_ns)
        fresh = Known(entry, key, after.st_nlink, trusted, seen_ns)
        if trust.stat and not trusted:
            self.young.append((fresh, seen_ns + granularity_ns(trust, after.st_ctime_ns)))
        return fresh

    def _hold(self, dir_fd: int, name: bytes, opened: int) -> Known:
        """Keep a file too large to copy: a reflink if possible, else a hard link."""
        before = os.fstat(opened)
        token = digest_of(repr(key_of(before)).encode("ascii"))
        try:
            how = self.store.hold(dir_fd, name, opened, token)
        except OSError as cause:
            raise OSError(
                cause.errno, f"{TOO_LARGE}, nor can it be linked into the store: {cause.strerror}"
            ) from cause
        entry = self._entry(name, before, ((0, before.st_size, token),), opened, how)
        # Our own hard link moves the ctime: the key is the one from after.
        after = os.fstat(opened)
        return Known(entry, key_of(after), after.st_nlink, True, time.monotonic_ns())

    def _entry(
        self,
        name: bytes,
        found: os.stat_result,
        chunks: tuple[Chunk, ...],
        fd: int,
        held: str = "",
    ) -> Entry:
        return make_entry(
            name, "f", stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid,
            found.st_mtime_ns, size=found.st_size, chunks=chunks, link=link_group(found),
            held=held, xattrs=self.xattrs(name, fd),
        )  # fmt: skip


def link_group(found: os.stat_result) -> str:
    """The name of the group of hard links that a file belongs to; "" for a single one."""
    return f"{found.st_dev:x}:{found.st_ino:x}" if found.st_nlink > 1 else ""


def _wait_for_the_clock(trust: Trust, found: os.stat_result) -> None:
    """Let a large file that was just written grow old enough to be trusted.

    A few milliseconds now save reading all of it again at the next capture.
    """
    if found.st_size < _WORTH_WAITING or not (trust.stat and trust.same_clock):
        return
    wait_ns = found.st_ctime_ns + granularity_ns(trust, found.st_ctime_ns) - time.time_ns()
    if 0 <= wait_ns < 50_000_000:
        time.sleep(wait_ns / 1e9 + 0.001)
