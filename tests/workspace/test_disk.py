"""Small disks, full disks, and filesystems of other kinds."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from workspace_world import World, assert_same

from kernel_runtime.engines.workspace import check, reading, scan
from kernel_runtime.engines.workspace.errors import (
    WorkspaceCaptureFailed,
    WorkspaceRestoreFailed,
    WorkspaceRestoreRefused,
)
from kernel_runtime.engines.workspace.filesystems import Trust

pytestmark = [
    pytest.mark.root,
    pytest.mark.parametrize("who", ["root"], indirect=True),
]
MIB = 1 << 20
TOOLS = os.pathsep.join([os.environ.get("PATH", ""), "/sbin", "/usr/sbin"])
Mount = Callable[..., Path]


@pytest.fixture
def mount(base: Path, ability: Callable[[str, bool], None]) -> Iterator[Mount]:
    """Mount a small filesystem at a path below base."""
    mounted: list[Path] = []

    def make(name: str, kind: str, size: int) -> Path:
        where = base / name
        where.mkdir()
        if kind == "tmpfs":
            command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(where)]
        else:
            image = base / f"{name}.img"
            with open(image, "wb") as file:
                file.truncate(size)
            tool = shutil.which(f"mkfs.{kind}", path=TOOLS) or ""
            ability(f"mkfs.{kind}", bool(tool))
            subprocess.run([tool, "-q", str(image)], check=True, capture_output=True)
            command = ["mount", "-o", "loop", str(image), str(where)]
        done = subprocess.run(command, check=False, capture_output=True)
        ability(f"mount {kind}", done.returncode == 0)
        mounted.append(where)
        return where

    yield make
    World.close_all()
    for where in reversed(mounted):
        subprocess.run(["umount", str(where)], check=True)


def test_11_a_sparse_file_on_a_small_disk(base: Path, mount: Mount) -> None:
    mount("W", "tmpfs", 200 * MIB)
    world = World(base)
    with open(world.W / "disk.img", "wb") as file:
        file.truncate(10 << 30)
        file.seek(5 << 30)
        file.write(b"x")
    a = world.capture()
    (world.W / "disk.img").unlink()
    world.write("other.txt", "new")
    world.restore(a.id)
    state = os.stat(world.W / "disk.img")
    assert (state.st_size, state.st_blocks * 512 < 1_000_000) == (10 << 30, True)


@pytest.mark.parametrize("foreseen", [True, False])
def test_14_no_room_for_a_restore(
    base: Path, mount: Mount, foreseen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount("W", "tmpfs", 40 * MIB)
    world = World(base)
    world.write("big", os.urandom(25 * MIB))
    world.write("keep.txt", "1")
    before = world.picture()
    a = world.capture()
    (world.W / "big").unlink()
    world.write("other", os.urandom(30 * MIB))
    world.write("keep.txt", "2")
    full = world.picture()
    if not foreseen:
        monkeypatch.setattr(check, "_disk", lambda *_: None)
    with pytest.raises(
        WorkspaceRestoreRefused if foreseen else WorkspaceRestoreFailed,
        match="room" if foreseen else r"big: No space left on device\. Everything was put back",
    ):
        world.restore(a.id)
    assert_same(full, world.picture())
    assert not world.leftovers()
    (world.W / "other").unlink()
    world.restore(a.id)
    assert_same(before, world.picture())


def test_store_01_no_room_in_the_store(base: Path, mount: Mount) -> None:
    store = mount("store", "tmpfs", 30 * MIB)
    world = World(base)
    world.write("a.bin", os.urandom(10 * MIB))
    before = world.picture()
    a = world.capture()
    world.store.flush()
    used = free(store)
    world.write("b.bin", os.urandom(15 * MIB))
    world.write("c.bin", os.urandom(10 * MIB))
    for _ in range(2):
        with pytest.raises(WorkspaceCaptureFailed, match=r"No room in the store.*are free"):
            world.capture()
        assert abs(free(store) - used) < MIB
    (world.W / "c.bin").unlink()
    b = world.capture()
    assert b.copied_bytes < 17 * MIB
    (world.W / "a.bin").unlink()
    (world.W / "b.bin").unlink()
    world.restore(a.id)
    assert_same(before, world.picture())
    # Making room works with none left.
    filler = store / "filler"
    filler.write_bytes(bytes(free(store)))
    assert free(store) == 0
    world.engine.release([a.id, b.id, world.safety.id])
    (world.W / "a.bin").unlink()
    result = world.engine.collect_garbage()
    assert result.freed_bytes > 14 * MIB
    filler.unlink()
    assert world.capture().files == 0


def free(where: Path) -> int:
    found = os.statvfs(where)
    return found.f_bavail * found.f_frsize


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_blocks_are_shared_where_the_filesystem_can(base: Path, mount: Mount, kind: str) -> None:
    disk = mount("disk", kind, 600 * MIB)
    for name in ("W", "store", "journal"):
        (disk / name).mkdir()
    world = World(disk, copy_limit=60 * MIB)
    world.write("chunked", os.urandom(40 * MIB))
    world.write("held", os.urandom(100 * MIB))
    os.sync()
    before, picture_before = free(disk), world.picture()
    a = world.capture()
    os.sync()
    assert before - free(disk) < 10 * MIB
    assert not a.left_out
    with open(world.W / "held", "r+b") as file:
        file.write(b"changed in place")
    (world.W / "chunked").unlink()
    os.sync()
    before = free(disk)
    world.restore(a.id)
    os.sync()
    assert before - free(disk) < 10 * MIB
    assert_same(picture_before, world.picture())


def test_a_mount_inside_the_workspace(base: Path, mount: Mount) -> None:
    (base / "W").mkdir()
    mount("W/inner", "tmpfs", 20 * MIB)
    world = World(base)
    world.write("inner/f", "one")
    world.write("inner/d/g", "one")
    world.write("f", "one")
    before = world.picture()
    a = world.capture()
    world.write("inner/f", "two")
    world.write("inner/d/h", "two")
    world.write("f", "two")
    world.restore(a.id)
    assert_same(before, world.picture())
    assert not world.leftovers()


def test_a_mount_that_comes_and_goes_is_noticed(base: Path, mount: Mount) -> None:
    world = World(base)
    world.write("inner/below", "hidden by the mount")
    a = world.capture()
    mount("other", "tmpfs", MIB)
    (world.W / "inner" / "below").exists()
    subprocess.run(["mount", "--bind", str(base / "other"), str(world.W / "inner")], check=True)
    try:
        b = world.capture()
        assert {p for _, p, _ in world.engine.manifest(b.id)} == {b"inner"}
    finally:
        subprocess.run(["umount", str(world.W / "inner")], check=True)
    c = world.capture()
    assert not world.engine.diff(a.id, c.id)


def test_the_kernels_own_filesystems_are_left_out(base: Path, mount: Mount) -> None:
    (base / "W/proc").mkdir(parents=True)
    subprocess.run(["mount", "-t", "proc", "proc", str(base / "W/proc")], check=True)
    try:
        world = World(base)
        world.write("f", "1")
        a = world.capture()
        assert [(one.path, one.absent) for one in a.left_out] == [(b"proc", True)]
        world.write("f", "2")
        world.restore(a.id)
        assert world.read("f") == "1"
    finally:
        subprocess.run(["umount", str(base / "W/proc")], check=True)


def test_05_a_filesystem_without_a_trustworthy_ctime(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on FAT, where what changed can look the same in every field of stat."""
    coarse = Trust("fat", False, False, 2_000_000_000, False)
    monkeypatch.setattr(reading, "trust_of", lambda fd: coarse)
    monkeypatch.setattr("kernel_runtime.engines.workspace.watch.trust_of", lambda fd: coarse)
    frozen = os.fstat
    for module in (scan, reading):
        monkeypatch.setattr(module, "key_of", lambda found: (1, found.st_ino, 8, 0, 0, 0))
    world = World(base)
    world.write("f", "rate=10\n")
    a = world.capture()
    assert "fat" in world.engine.scanning_because
    world.write("f", "rate=99\n")
    b = world.capture()
    monkeypatch.undo()
    assert os.fstat is frozen
    assert b"".join(world.engine.read_file(a.id, b"f")) == b"rate=10\n"
    assert b"".join(world.engine.read_file(b.id, b"f")) == b"rate=99\n"
