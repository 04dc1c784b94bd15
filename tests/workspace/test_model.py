"""Any sequence of tree operations, captures and restores gives back every byte and attribute."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from workspace_world import Picture, World, assert_same

from kernel_runtime.engines.workspace.model import SnapshotId

NAMES = [b"a", b"b", b"c\xff", b"d.ipynb"]
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(tuple)
CONTENT = st.one_of(
    st.binary(max_size=12),
    st.integers(0, 3).map(lambda n: bytes([n]) * 200_000),
    st.just(b"same size"), st.just(b"other 9!!"),
)  # fmt: skip
MODES = st.sampled_from([0o644, 0o600, 0o755, 0o444, 0o711, 0o4755])


class Tree(RuleBasedStateMachine):
    """Operations that fail because of the tree's shape are no operations."""

    snapshots: Bundle[tuple[SnapshotId, Picture]] = Bundle("snapshots")
    watching = True

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="tt-workspace-", dir=memory()))
        self.world = World(self.base, exclude=[])
        if not self.watching:
            self.world.engine._capturer.watch_refused = "not in this test"

    def at(self, path: tuple[bytes, ...]) -> bytes:
        return os.path.join(os.fsencode(self.world.W), *path)

    @initialize()
    def begin(self) -> None:
        os.makedirs(self.at((b"a", b"b")))

    @rule(path=PATHS, content=CONTENT, in_place=st.booleans())
    def write(self, path: tuple[bytes, ...], content: bytes, in_place: bool) -> None:
        with contextlib.suppress(OSError):
            os.makedirs(self.at(path[:-1]), exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (0 if in_place else os.O_TRUNC)
        with contextlib.suppress(OSError):
            fd = os.open(self.at(path), flags | os.O_NONBLOCK, 0o644)
            try:
                before = os.fstat(fd)
                os.write(fd, content)
                if in_place:  # a write that the time does not show
                    os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))
            finally:
                os.close(fd)

    @rule(path=PATHS, size=st.integers(1, 3))
    def make_hole(self, path: tuple[bytes, ...], size: int) -> None:
        with contextlib.suppress(OSError):
            fd = os.open(self.at(path), os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            os.ftruncate(fd, size << 20)
            os.close(fd)

    @rule(path=PATHS)
    def remove(self, path: tuple[bytes, ...]) -> None:
        target = self.at(path)
        if os.path.isdir(target) and not os.path.islink(target):
            shutil.rmtree(target, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.unlink(target)

    @rule(path=PATHS)
    def make_directory(self, path: tuple[bytes, ...]) -> None:
        with contextlib.suppress(OSError):
            os.makedirs(self.at(path))

    @rule(old=PATHS, new=PATHS)
    def rename(self, old: tuple[bytes, ...], new: tuple[bytes, ...]) -> None:
        with contextlib.suppress(OSError):
            os.rename(self.at(old), self.at(new))

    @rule(old=PATHS, new=PATHS)
    def link(self, old: tuple[bytes, ...], new: tuple[bytes, ...]) -> None:
        with contextlib.suppress(OSError):
            os.link(self.at(old), self.at(new), follow_symlinks=False)

    @rule(path=PATHS, to=st.sampled_from([b"a", b"../x\xfe", b"/nonexistent"]))
    def symlink(self, path: tuple[bytes, ...], to: bytes) -> None:
        with contextlib.suppress(OSError):
            os.symlink(to, self.at(path))

    @rule(path=PATHS)
    def fifo(self, path: tuple[bytes, ...]) -> None:
        with contextlib.suppress(OSError):
            os.mkfifo(self.at(path))

    @rule(path=PATHS, mode=MODES)
    def chmod(self, path: tuple[bytes, ...], mode: int) -> None:
        target = self.at(path)
        if os.path.isdir(target):
            mode |= 0o700
        with contextlib.suppress(OSError):
            if not os.path.islink(target):
                os.chmod(target, mode)

    @rule(path=PATHS, value=st.sampled_from([b"", b"v", b"\x00w"]))
    def set_xattr(self, path: tuple[bytes, ...], value: bytes) -> None:
        with contextlib.suppress(OSError):
            if value:
                os.setxattr(self.at(path), "user.x", value, follow_symlinks=False)
            else:
                os.removexattr(self.at(path), "user.x", follow_symlinks=False)

    @rule(target=snapshots)
    def capture(self) -> tuple[SnapshotId, Picture]:
        snapshot = self.world.capture()
        assert not snapshot.left_out
        return snapshot.id, self.world.picture()

    @rule(snapshot=snapshots)
    def restore(self, snapshot: tuple[SnapshotId, Picture]) -> None:
        before = self.world.picture()
        self.world.restore(snapshot[0], include_documents=True)
        assert_same(snapshot[1], self.world.picture())
        changes = self.world.engine.current_changes(snapshot[0])
        assert not changes, changes
        self.world.restore(self.world.safety.id, include_documents=True)
        assert_same(before, self.world.picture())
        self.world.restore(snapshot[0], include_documents=True)
        assert_same(snapshot[1], self.world.picture())

    @rule(snapshot=consumes(snapshots))
    def release(self, snapshot: tuple[SnapshotId, Picture]) -> None:
        self.world.engine.release([snapshot[0]])
        self.world.engine.collect_garbage()

    @rule()
    def restart(self) -> None:
        self.world.reopen()

    @invariant()
    def nothing_is_left_behind(self) -> None:
        assert not self.world.leftovers()

    def teardown(self) -> None:
        self.world.engine.close()
        shutil.rmtree(self.base, ignore_errors=True)


def memory() -> str | None:
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


@pytest.mark.parametrize("watching", [True, False], ids=["watched", "scanned"])
def test_any_sequence(who: str, watching: bool) -> None:
    run(40, 30, watching)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(600)  # below ten seconds, unless a failing sequence has to be made shorter
@pytest.mark.parametrize("watching", [True, False], ids=["watched", "scanned"])
def test_many_long_sequences(who: str, watching: bool) -> None:
    run(150, 60, watching)


def run(examples: int, steps: int, watching: bool) -> None:
    machine = type("Machine", (Tree,), {"watching": watching})
    health: list[Any] = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, database=None,
            suppress_health_check=health, derandomize=examples < 100, print_blob=True,
        ),
    )  # fmt: skip
