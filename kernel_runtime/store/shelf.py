"""The directory of a blob store: what lies in it, who wants it, and what nobody wants.

Several processes write and sweep at once. A sweep deletes what is not named, and spares what was
put or found again since it began: whoever adds holds the shared lock while a blob and the lease or
pin that names it come into being, whoever deletes holds the exclusive one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Final

from kernel_runtime.later import dataclass
from kernel_runtime.store.cipher import Altered, Cipher
from kernel_runtime.store.digests import Digest
from kernel_runtime.store.leases import Lease, read_lease

try:
    import fcntl
except ImportError:  # not on Windows, where the engines do not run either
    fcntl = None  # type: ignore[assignment]

_O_CLOEXEC: Final[int] = getattr(os, "O_CLOEXEC", 0)


@dataclass(frozen=True)
class SweepResult:
    """What a sweep removed: number of blobs and their bytes on disk."""

    removed: int
    freed_bytes: int


class Shelf:
    """Names of blobs, pins and leases in one directory; reads no blob."""

    path: Path
    _cipher: Cipher | None = None

    # -- what lies here -----------------------------------------------------------------------

    def held_path(self, token: Digest) -> Path:
        """Where a held file is, whether or not it is there."""
        return self.path / "held" / token

    def blobs(self) -> Iterator[Digest]:
        """The names of all blobs; held files not included."""
        plain = set()
        for digest in self.plain_blobs():
            plain.add(digest)
            yield digest
        for _, digest in self._sealed():
            if digest not in plain:
                yield digest

    def plain_blobs(self) -> Iterator[Digest]:
        """Those that are not sealed: in an encrypted store, from before it was."""
        for folder in sorted((self.path / "blobs").iterdir()):
            for file in sorted(folder.iterdir()):
                yield Digest(file.name)

    def plain_bytes(self) -> int:
        """The bytes of those, on the disk."""
        return sum(self.plain_file(x).stat().st_blocks * 512 for x in self.plain_blobs())

    def plain_file(self, digest: Digest) -> Path:
        """Where a blob lies that is not sealed, whether or not it is there."""
        return self.path / "blobs" / digest[:2] / digest

    # -- what is wanted -----------------------------------------------------------------------

    def unpin(self, digest: Digest) -> None:
        """Do not want it any more; what is not pinned is no error."""
        with contextlib.suppress(FileNotFoundError):
            (self.path / "pins" / digest).unlink()

    def pinned(self) -> list[Digest]:
        """All blobs that are wanted for themselves."""
        return [Digest(file.name) for file in (self.path / "pins").iterdir()]

    def lease(self, name: str) -> Lease:
        """Open a lease of this name for the calling process. Raises OSError."""
        return Lease(self.path / "leases" / name)

    @contextlib.contextmanager
    def collecting(self) -> Iterator[tuple[list[Digest], int]]:
        """Around finding out what is wanted, and the `sweep` of the rest; one at a time.

        Yields what to start from, and the time to give to `sweep`. Leases of processes that
        have ended are removed.
        """
        with self._locked(exclusive=True, name="collector"):
            with self._locked(exclusive=True):
                # No addition is under way: what earlier ones need, a lease names by now. Only
                # then pins are read, since a lease moves on once its snapshot is pinned.
                before_ns = self._now_ns()
                wanted: list[Digest] = []
                for file in (self.path / "leases").iterdir():
                    with contextlib.suppress(FileNotFoundError):
                        wanted += read_lease(file)
            yield wanted + self.pinned(), before_ns

    def sweep(
        self,
        keep: Container[str],
        *,
        before_ns: int,
        among: Iterable[Digest] | None = None,
    ) -> SweepResult:
        """Delete blobs and held files that keep does not name.

        before_ns: from `collecting`; whatever was put or found again since is kept. among:
        look at these only. Writes nothing, so it works on a full disk. Adding blobs waits at
        most for a batch of 500 deletions.
        """
        removed = freed = 0
        batch: list[str] = []
        for name, digest in self._candidates(among):
            if digest not in keep:
                batch.append(name)
            if len(batch) >= 500:
                count, size = self._delete(batch, before_ns)
                removed, freed, batch = removed + count, freed + size, []
        count, size = self._delete(batch, before_ns)
        return SweepResult(removed + count, freed + size)

    # -- inside -------------------------------------------------------------------------------

    def _file(self, digest: str) -> str:
        """Where a blob is written."""
        if self._cipher is None:
            return f"{self.path}/blobs/{digest[:2]}/{digest}"
        name = self._cipher.hide(digest)
        return f"{self.path}/sealed/{name[:2]}/{name}"

    def _files(self, digest: Digest) -> list[str]:
        """Where a blob may lie: where it is written first."""
        plain = [] if self._cipher is None else [str(self.plain_file(digest))]
        return [self._file(digest), *plain]

    def _sealed(self) -> Iterator[tuple[str, Digest]]:
        """Files of sealed blobs, with what they hold; a file of another name is not ours."""
        top = self.path / "sealed"
        if self._cipher is None or not top.is_dir():
            return
        for folder in sorted(top.iterdir()):
            for file in sorted(folder.iterdir()):
                with contextlib.suppress(Altered):
                    yield str(file), Digest(self._cipher.reveal(file.name))

    def _candidates(self, among: Iterable[Digest] | None) -> Iterator[tuple[str, str]]:
        if among is None:
            yield from ((str(self.plain_file(digest)), digest) for digest in self.plain_blobs())
            yield from self._sealed()
            yield from ((str(file), file.name) for file in (self.path / "held").iterdir())
            return
        for digest in among:
            yield from ((name, digest) for name in self._files(digest))
            yield str(self.held_path(digest)), digest

    def _delete(self, names: list[str], before_ns: int) -> tuple[int, int]:
        removed = freed = 0
        if not names:
            return 0, 0
        with self._locked(exclusive=True):
            now_ns = self._now_ns()
            for name in names:
                try:
                    found = os.lstat(name)
                    # The mtime of a held link is the user's own; its lease protects it.
                    if "/held/" not in name and found.st_mtime_ns >= before_ns:
                        if found.st_mtime_ns > now_ns:  # the clock was wrong: for the next sweep
                            os.utime(name)
                        continue
                    os.unlink(name)
                except FileNotFoundError:
                    continue
                removed += 1
                freed += found.st_blocks * 512
        return removed, freed

    def _now_ns(self) -> int:
        """The time that the store's filesystem would give to a file now: its clock may be
        another machine's, or go in steps."""
        os.utime(self.path / "lock")
        return os.stat(self.path / "lock").st_mtime_ns

    @contextlib.contextmanager
    def _locked(self, *, exclusive: bool, name: str = "lock") -> Iterator[None]:
        fd = os.open(self.path / name, os.O_CREAT | os.O_RDWR | _O_CLOEXEC, 0o600)
        try:
            if fcntl is not None:
                fcntl.flock(fd, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            yield
        finally:
            os.close(fd)
