"""What the workspace tests share: a world of its own for each test, and pictures of trees."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from kernel_runtime.engines.workspace.engine import WorkspaceEngine
from kernel_runtime.engines.workspace.model import RestoreResult, Snapshot, SnapshotId
from kernel_runtime.store.blobs import BlobStore

USER = 65534  # nobody
PR_SET_DUMPABLE = 4

Picture = dict[bytes, tuple[Any, ...]]


class World:
    """A workspace W, a store, and an engine, in a directory of their own."""

    opened: ClassVar[list[WorkspaceEngine]] = []
    """Engines that the test has not closed; the fixtures do."""

    def __init__(self, base: Path, **options: Any) -> None:
        self.base = base
        self.W = base / "W"
        self.W.mkdir(exist_ok=True)
        self.options = options
        self.store = BlobStore(base / "store")
        self.engine = self.new_engine()

    def new_engine(self, **options: Any) -> WorkspaceEngine:
        """Another engine for the same directory, as the next supervisor would make it."""
        settings = {"document": self.W / "running.ipynb", **self.options, **options}
        engine = WorkspaceEngine(
            [self.W], self.store, journal_dir=self.base / "journal", **settings
        )
        self.opened.append(engine)
        return engine

    @classmethod
    def close_all(cls) -> None:
        """Close what tests left open."""
        while cls.opened:
            cls.opened.pop().close()

    def reopen(self) -> None:
        """End the engine and start another, as a restart of the kernel does."""
        self.engine.close()
        self.engine = self.new_engine()

    def capture(self) -> Snapshot:
        """A checkpoint of the files."""
        return self.engine.capture()

    def restore(self, snapshot_id: SnapshotId, **options: Any) -> RestoreResult:
        """A restore as the supervisor makes it: plan, safety checkpoint, restore."""
        plan = self.engine.plan_restore(snapshot_id, **options)
        safety = self.engine.capture(rules_of=snapshot_id)
        self.safety = safety
        return self.engine.restore(plan, foreign=safety)

    def write(self, path: str, content: str | bytes) -> None:
        """Write a file, its directories too."""
        target = self.W / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)

    def read(self, path: str) -> str:
        """The text of a file."""
        return (self.W / path).read_text()

    def picture(self) -> Picture:
        """Everything of W that a restore must bring back."""
        return picture(self.W)

    def store_bytes(self) -> int:
        """What the store takes up on disk."""
        return sum(
            os.lstat(os.path.join(where, name)).st_blocks * 512
            for where, _, names in os.walk(self.base / "store")
            for name in names
        )

    def leftovers(self) -> list[str]:
        """What a restore may not leave behind in W or in the journal."""
        journal = [n for n in os.listdir(self.base / "journal") if n.startswith("restore-")]
        here = [
            os.path.join(where, name)
            for where, directories, _ in os.walk(self.W)
            for name in directories
            if name.startswith(".timetravel")
        ]
        return journal + here


def picture(top: Path) -> Picture:
    """For each path: type, mode, owner, mtime, content or target, xattrs, hard-link partners."""
    found: Picture = {}
    groups: dict[tuple[int, int], list[bytes]] = {}
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found[b""] = _look(fd, b".")
        for path, at, name in _walk(fd, b""):
            found[path] = _look(at, name)
            state = os.stat(name, follow_symlinks=False, dir_fd=at)
            if stat.S_ISREG(state.st_mode) and state.st_nlink > 1:
                groups.setdefault((state.st_dev, state.st_ino), []).append(path)
    finally:
        os.close(fd)
    for members in groups.values():
        for path in members:
            found[path] = (*found[path], tuple(sorted(members)))
    return found


def _walk(fd: int, prefix: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    for name in sorted(os.fsencode(name) for name in os.listdir(fd)):
        path = prefix + b"/" + name if prefix else name
        yield path, fd, name
        if stat.S_ISDIR(os.stat(name, follow_symlinks=False, dir_fd=fd).st_mode):
            try:
                below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
            except PermissionError:
                continue
            try:
                yield from _walk(below, path)
            finally:
                os.close(below)


def _look(fd: int, name: bytes) -> tuple[Any, ...]:
    state = os.stat(name, follow_symlinks=False, dir_fd=fd)
    content: Any = None
    xattrs: tuple[Any, ...] = ()
    if stat.S_ISLNK(state.st_mode):
        content = os.readlink(name, dir_fd=fd)
    elif stat.S_ISREG(state.st_mode):
        try:
            opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=fd)
        except PermissionError:
            content = "unreadable"
        else:
            content = os.pread(opened, min(state.st_size, 1 << 22), 0)
            xattrs = tuple((n, os.getxattr(opened, n)) for n in sorted(os.listxattr(opened)))
            os.close(opened)
    return (
        stat.S_IFMT(state.st_mode), stat.S_IMODE(state.st_mode), state.st_uid, state.st_gid,
        state.st_size if stat.S_ISREG(state.st_mode) else 0, state.st_mtime_ns, content, xattrs,
    )  # fmt: skip


def assert_same(before: Picture, after: Picture) -> None:
    """Two pictures are equal; else say where not."""
    different = {
        path: (before.get(path), after.get(path))
        for path in before.keys() | after.keys()
        if before.get(path) != after.get(path)
    }
    assert not different, dict(list(different.items())[:5])


def become_user() -> None:
    """Give root's privileges up for good; for child processes."""
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    # A process that changed its ids may not look into its own /proc until it says so.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    os.environ["HOME"] = "/nonexistent"
