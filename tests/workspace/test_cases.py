"""The situations in which people lose files, each as it happens."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from workspace_world import USER, World, assert_same, become_user, picture

from kernel_runtime.engines.workspace import reading, scan
from kernel_runtime.engines.workspace.errors import WorkspaceRestoreFailed, WorkspaceRestoreRefused
from kernel_runtime.engines.workspace.names import printable

Make = Callable[..., World]
MIB = 1 << 20


def git(where: Path, *command: str) -> subprocess.CompletedProcess[bytes]:
    settings = ("-c", "user.name=n", "-c", "user.email=e@x", "-c", "safe.directory=*")
    environment = {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(where)}
    environment["GIT_OPTIONAL_LOCKS"] = "0"  # `git status` would write .git/index itself
    return subprocess.run(
        ["git", *settings, *command], cwd=where, env=environment, capture_output=True, check=False
    )


def must_git(where: Path, *command: str) -> None:
    done = git(where, *command)
    assert done.returncode == 0, done.stderr


def make_repositories(w: Path) -> None:
    must_git(w, "init", "-q", ".")
    (w / "libs").mkdir()
    must_git(w, "init", "-q", "libs/inner")
    must_git(w / "libs/inner", "commit", "-q", "--allow-empty", "-m", "one")
    (w / "libs/inner/f").write_text("1\n")
    must_git(w / "libs/inner", "worktree", "add", "-q", "../wt")
    (w / "x/empty").mkdir(parents=True)
    must_git(w, "init", "-q", "--bare", "x/bare.git")


def test_01_repositories_are_plain_data(make_world: Make) -> None:
    world = make_world()
    make_repositories(world.W)
    before = world.picture()
    a = world.capture()
    assert_same(before, world.picture())
    subprocess.run(
        "rm -rf libs x .git && mkdir libs && echo junk > libs/inner",
        shell=True, cwd=world.W, check=True,
    )  # fmt: skip
    world.restore(a.id)
    assert_same(before, world.picture())
    must_git(world.W, "fsck")
    must_git(world.W / "libs/inner", "fsck")
    must_git(world.W / "libs/wt", "status")


def test_01_git_works_while_a_capture_runs_and_is_killed(make_world: Make) -> None:
    world = make_world()
    make_repositories(world.W)
    for number in range(2000):
        world.write(f"many/{number % 40}/{number}", str(number))
    names = sorted(p for p in picture(world.W) if b".git" in p)
    for run in range(4):
        child = os.fork()
        if child == 0:
            try:
                world.new_engine().capture()
            finally:
                os._exit(0)
        for _ in range(2):
            assert git(world.W / "libs/inner", "rev-parse", "HEAD").returncode == 0
            assert git(world.W, "status", "--porcelain").returncode == 0
        if run:
            os.kill(child, 9)
        os.waitpid(child, 0)
        assert sorted(p for p in picture(world.W) if b".git" in p) == names


def test_02_what_git_ignores_is_part_of_the_state(make_world: Make) -> None:
    world = make_world()
    world.write(".gitignore", "output/\n*.npy\n")
    world.write("output/run1.jsonl", "r1\n")
    world.write("w.npy", b"\x93NUMPY-A")
    a = world.capture()
    world.write("output/run1.jsonl", "spoilt\n")
    world.write("output/run2.jsonl", "r2\n")
    world.write(".gitignore", "")
    (world.W / "w.npy").unlink()
    world.restore(a.id)
    b = world.safety
    assert world.read("output/run1.jsonl") == "r1\n"
    assert (world.W / "w.npy").read_bytes() == b"\x93NUMPY-A"
    assert world.read(".gitignore") == "output/\n*.npy\n"
    assert not (world.W / "output/run2.jsonl").exists()
    world.restore(b.id)
    assert world.read("output/run2.jsonl") == "r2\n"
    assert world.read("output/run1.jsonl") == "spoilt\n"


def test_02_left_out_is_neither_captured_nor_deleted(make_world: Make) -> None:
    world = make_world(exclude=["scratch", "/top.tmp"])
    world.write("d/scratch/old", "old")
    world.write("top.tmp", "t")
    world.write("d/top.tmp", "not the one at the top")
    a = world.capture()
    assert a.excluded == 2
    world.write("d/scratch/old", "new")
    world.write("d/scratch/more", "more")
    world.write("top.tmp", "t2")
    world.write("d/top.tmp", "changed")
    # The rules of the checkpoint count, not those of the session that restores.
    world.engine.close()
    world.engine = world.new_engine(exclude=["d"])
    result = world.restore(a.id)
    assert result.excluded == 2
    assert world.read("d/scratch/old") == "new"
    assert world.read("d/scratch/more") == "more"
    assert world.read("top.tmp") == "t2"
    assert world.read("d/top.tmp") == "not the one at the top"


def test_02_a_directory_made_since_keeps_what_is_left_out(make_world: Make) -> None:
    world = make_world(exclude=["scratch"])
    a = world.capture()
    world.write("d/scratch/x", "x")
    world.write("d/e/f", "f")
    result = world.restore(a.id)
    assert world.read("d/scratch/x") == "x"
    assert not (world.W / "d/e").exists()
    assert any(one.path == b"d" for one in result.kept)


def test_04_a_large_unchanged_file_costs_nothing(make_world: Make) -> None:
    world = make_world()
    big = world.W / "big.bin"
    size = 64
    with open(big, "wb") as file:
        for _ in range(size):
            file.write(os.urandom(MIB))
    content = big.read_bytes()
    a = world.capture()
    read_before = world.engine._capturer.content.read_bytes
    start = world.store_bytes()
    world.write("note.txt", "hi")
    world.capture()
    assert world.engine._capturer.content.read_bytes - read_before < MIB
    assert world.store_bytes() - start < MIB
    with open(big, "r+b") as file:
        file.seek(25 * MIB)
        file.write(b"x" * 10)
    start = world.store_bytes()
    world.capture()
    assert world.store_bytes() - start < 5 * MIB
    start = world.store_bytes()
    for _ in range(20):
        world.capture()
    assert world.store_bytes() - start < MIB
    world.restore(a.id)
    assert big.read_bytes() == content
    assert sorted(os.listdir(world.W)) == ["big.bin"]


def test_04_a_growing_log_is_not_stored_anew_each_time(make_world: Make) -> None:
    world = make_world()
    for _ in range(100):
        with open(world.W / "log.txt", "a") as log:
            log.write("line\n" * 1000)
        world.capture()
    assert world.store_bytes() < 12 * MIB  # whole copies: 25 MiB


def test_05_same_size_and_mtime(make_world: Make) -> None:
    world = make_world()
    path = world.W / "m.cfg"
    path.write_text("rate=10\n")
    t = path.stat().st_mtime_ns
    a = world.capture()
    with open(path, "r+") as file:
        file.write("rate=99\n")
    os.utime(path, ns=(t, t))
    b = world.capture()
    path.write_text("rate=00\n")
    os.utime(path, ns=(t, t))
    world.restore(b.id)
    assert (path.read_text(), path.stat().st_mtime_ns) == ("rate=99\n", t)
    world.restore(a.id)
    assert (path.read_text(), path.stat().st_mtime_ns) == ("rate=10\n", t)


def test_05_replaced_by_a_file_of_the_same_size_and_mtime(make_world: Make) -> None:
    world = make_world()
    path = world.W / "m.cfg"
    path.write_text("rate=10\n")
    t = path.stat().st_mtime_ns
    a = world.capture()
    other = world.W / "m.new"
    other.write_text("rate=99\n")
    os.utime(other, ns=(t, t))
    os.replace(other, path)
    b = world.capture()
    world.restore(a.id)
    assert path.read_text() == "rate=10\n"
    world.restore(b.id)
    assert path.read_text() == "rate=99\n"


@pytest.mark.parametrize("how", ["watched", "scanned", "watched, ticks", "scanned, ticks"])
def test_05_two_hundred_rounds_without_a_pause(
    make_world: Make, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    if how != "watched":
        world.engine._capturer.watch_refused = "not in this test"
    if how.endswith("ticks"):
        # Linux before 6.13: two writes within one tick have the same timestamps.
        exact = scan.key_of

        def coarse(found: os.stat_result) -> tuple[int, ...]:
            dev, ino, size, mtime, ctime, mode = exact(found)
            return dev, ino, size, mtime // 10**7, ctime // 10**7, mode

        for module in (scan, reading):
            monkeypatch.setattr(module, "key_of", coarse)
    path = world.W / "f"
    path.write_bytes(b"00000000")
    t = path.stat().st_mtime_ns
    snapshots = []
    for round_ in range(200):
        for half in (b"a", b"b"):
            content = half + b"%07d" % round_
            with open(path, "r+b") as file:
                file.write(content)
            os.utime(path, ns=(t, t))
            snapshots.append((world.capture(), content))
            if how.endswith("ticks"):
                snapshots.append((world.capture(), content))
    for snapshot, content in snapshots:
        assert b"".join(world.engine.read_file(snapshot.id, b"f")) == content


def swap_to_links(w: Path, victim: Path, moved: Path) -> None:
    (victim / "sub").mkdir(parents=True)
    (victim / "sub/a.txt").write_text("precious")
    (victim / "ini").write_text("precious")
    (w / "data").rename(moved)
    (w / "data").symlink_to(victim)
    (w / "c.ini").unlink()
    (w / "c.ini").symlink_to(victim / "ini")
    (w / "dangling").unlink()
    (w / "dangling").mkdir()
    (w / "dangling/y").write_text("y\n")


def make_plain(world: World) -> None:
    world.write("data/sub/a.txt", "inside")
    world.write("c.ini", "cfg=1")
    os.symlink("/nonexistent/x", world.W / "dangling")
    os.symlink("../outside_W", world.W / "up")


def test_07_links_in_the_place_of_files_lead_nowhere(make_world: Make, base: Path) -> None:
    world = make_world()
    victim, moved = base / "victim", base / "data.moved"
    make_plain(world)
    before = world.picture()
    a = world.capture()
    swap_to_links(world.W, victim, moved)
    outside = (picture(victim), picture(moved))
    linked = world.capture()
    paths = {path for _, path, _ in world.engine.manifest(linked.id)}
    assert b"data" in paths and b"data/sub" not in paths
    with_links = world.picture()
    world.restore(a.id)
    assert_same(before, world.picture())
    assert (picture(victim), picture(moved)) == outside
    world.restore(linked.id)
    assert_same(with_links, world.picture())
    assert (picture(victim), picture(moved)) == outside


@pytest.mark.parametrize("old", ["file", "directory", "link"])
@pytest.mark.parametrize("new", ["file", "directory", "link"])
def test_07_types_change_in_all_directions(make_world: Make, old: str, new: str) -> None:
    def make(world: World, kind: str, text: str) -> None:
        if kind == "file":
            world.write("x", text)
        elif kind == "directory":
            world.write("x/below/f", text)
        else:
            os.symlink(f"/nonexistent/{text}", world.W / "x")

    world = make_world()
    make(world, old, "one")
    before = world.picture()
    a = world.capture()
    subprocess.run(["rm", "-rf", str(world.W / "x")], check=True)
    make(world, new, "two")
    after = world.picture()
    world.restore(a.id)
    assert_same(before, world.picture())
    world.restore(world.safety.id)
    assert_same(after, world.picture())


def test_08_modes_that_lock_the_owner_out(make_world: Make) -> None:
    world = make_world()
    world.write("locked.key", "k1")
    world.write("nox/f", "in")
    world.write("nox/deeper/g", "deep")
    world.write("ro/f", "r1")
    world.write("readonly.txt", "v1")
    modes = {"locked.key": 0, "nox/deeper": 0o100, "nox": 0, "ro": 0o555, "readonly.txt": 0o444}
    for name, mode in modes.items():
        os.chmod(world.W / name, mode)
    a = world.capture()
    assert not a.left_out
    assert os.stat(world.W / "locked.key").st_mode & 0o7777 == 0
    again = world.capture()
    assert not again.changed
    for name in ("nox", "nox/deeper", "ro", "locked.key"):
        os.chmod(world.W / name, 0o700)
    subprocess.run("rm -rf nox ro locked.key readonly.txt", shell=True, cwd=world.W, check=True)
    world.restore(a.id)
    found = {n: os.lstat(world.W / n).st_mode & 0o7777 for n in ("locked.key", "nox", "ro")}
    assert found == {"locked.key": 0, "nox": 0, "ro": 0o555}
    assert os.lstat(world.W / "ro/f").st_mode & 0o7777 == 0o644
    assert os.lstat(world.W / "readonly.txt").st_mode & 0o7777 == 0o444
    for name in ("nox", "nox/deeper", "ro", "locked.key"):
        os.chmod(world.W / name, 0o700)
    assert world.read("locked.key") == "k1"
    assert world.read("nox/f") == "in"
    assert world.read("nox/deeper/g") == "deep"
    assert world.read("ro/f") == "r1"
    assert world.read("readonly.txt") == "v1"


def test_08_changes_inside_locked_directories(make_world: Make) -> None:
    world = make_world()
    world.write("nox/f", "one")
    world.write("ro/f", "one")
    os.chmod(world.W / "nox", 0)
    os.chmod(world.W / "ro", 0o555)
    a = world.capture()
    for name in ("nox", "ro"):
        os.chmod(world.W / name, 0o700)
        world.write(f"{name}/f", "two")
        world.write(f"{name}/g", "new")
    os.chmod(world.W / "nox", 0)
    os.chmod(world.W / "ro", 0o555)
    b = world.capture()
    for snapshot, text, there in ((a, "one", False), (b, "two", True), (a, "one", False)):
        world.restore(snapshot.id)
        assert os.lstat(world.W / "nox").st_mode & 0o7777 == 0
        assert os.lstat(world.W / "ro").st_mode & 0o7777 == 0o555
        os.chmod(world.W / "nox", 0o700)
        assert world.read("nox/f") == world.read("ro/f") == text
        assert (world.W / "nox/g").exists() == (world.W / "ro/g").exists() == there
        os.chmod(world.W / "nox", 0)
    assert not world.leftovers()


@pytest.mark.root
@pytest.mark.parametrize("who", ["root"], indirect=True)
def test_08_what_belongs_to_someone_else(base: Path) -> None:
    # The workspace belongs to a user; root puts files there that this user may not read.
    os.chown(base, USER, USER)
    for part in ("W", "W/sub", "store", "journal"):
        (base / part).mkdir()
        os.chown(base / part, USER, USER)
    for name in ("foreign", "sub/foreign"):
        (base / "W" / name).write_text("secret")
        os.chmod(base / "W" / name, 0o600)
    (base / "W/foreign.d").mkdir(mode=0o700)
    before = [picture(base / "W")[p] for p in (b"foreign", b"sub/foreign", b"foreign.d")]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            become_user()
            world = World(base)
            world.write("mine", "1")
            a = world.capture()
            assert {one.path for one in a.left_out} == {b"foreign", b"sub/foreign", b"foreign.d"}
            assert all(one.absent and "Permission denied" in one.reason for one in a.left_out)
            world.write("mine", "2")
            world.write("sub/more", "x")
            world.restore(a.id)
            assert world.read("mine") == "1"
            assert not (world.W / "sub/more").exists()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert [picture(base / "W")[p] for p in (b"foreign", b"sub/foreign", b"foreign.d")] == before


NAMES = [
    b"caf\xe9.csv", b"\xfe", b"\xff", b"new\nline", b"tab\t", b"-rf", b" ", b"a\\b", b"q'uote\"",
    b"*", b"\x1b[31mred", "é.txt".encode(), "e\u0301.txt".encode(), b"Data", b"data", b"n" * 255,
]  # fmt: skip


def test_10_names_are_bytes(make_world: Make) -> None:
    world = make_world()
    top = os.open(world.W, os.O_RDONLY)
    for number, name in enumerate(NAMES):
        fd = os.open(name, os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=top)
        os.write(fd, b"%d" % number)
        os.close(fd)
    os.symlink(b"to-\xff-target", b"lnk\xe9", dir_fd=top)
    at = os.dup(top)
    for _ in range(25):
        os.mkdir(b"d" * 200, dir_fd=at)
        below = os.open(b"d" * 200, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    fd = os.open(b"leaf", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=at)
    os.write(fd, b"deep")
    os.close(fd)
    os.close(at)
    before = world.picture()
    a = world.capture()
    assert not a.left_out
    for name in (*NAMES, b"lnk\xe9"):
        os.unlink(name, dir_fd=top)
    subprocess.run("rm -rf ddd*", shell=True, cwd=world.W, check=True)
    empty = world.capture()
    world.restore(a.id)
    assert_same(before, world.picture())
    assert before[b"/".join([b"d" * 200] * 25 + [b"leaf"])][6] == b"deep"
    for number, name in enumerate(NAMES):
        assert before[name][6] == b"%d" % number
    changes = world.engine.diff(empty.id, a.id)
    for encoding in ("ascii", "latin-1", "utf-8"):
        shown = [printable(change.path, encoding) for change in changes]
        assert len(set(shown)) == len(changes)
        for line in shown:
            assert line.isprintable()
            io.TextIOWrapper(io.BytesIO(), encoding=encoding).write(line)
            assert json.loads(json.dumps(line)) == line
    world.restore(empty.id)
    assert os.listdir(world.W) == []
    os.close(top)


def test_11_sparse_files_stay_sparse(make_world: Make) -> None:
    world = make_world()
    image = world.W / "disk.img"
    with open(image, "wb") as file:
        file.truncate(10 << 30)
        file.seek(5 << 30)
        file.write(b"x")
    start = world.store_bytes()
    a = world.capture()
    assert world.store_bytes() - start < MIB
    image.unlink()
    world.write("other.txt", "new")
    world.restore(a.id)
    state = os.stat(image)
    assert state.st_size == 10737418240
    assert state.st_blocks * 512 < 1_000_000
    with open(image, "rb") as file:
        file.seek(5 << 30)
        assert file.read(1) == b"x"


def test_13_the_running_notebook_is_not_rolled_back(make_world: Make, base: Path) -> None:
    world = make_world()
    world.engine.document = world.W / "t.ipynb"
    for name in ("t.ipynb", "other.ipynb", ".ipynb_checkpoints/t-checkpoint.ipynb"):
        world.write(name, "a = 1")
    world.write(".ipynb_checkpoints/other-checkpoint.ipynb", "a = 1")
    a = world.capture()
    for name in ("t.ipynb", "other.ipynb", ".ipynb_checkpoints/t-checkpoint.ipynb"):
        world.write(name, "b = 2")
    world.write(".ipynb_checkpoints/other-checkpoint.ipynb", "b = 2")
    mtime = os.stat(world.W / "t.ipynb").st_mtime_ns
    result = world.restore(a.id)
    assert world.read("t.ipynb") == world.read(".ipynb_checkpoints/t-checkpoint.ipynb") == "b = 2"
    assert os.stat(world.W / "t.ipynb").st_mtime_ns == mtime
    assert world.read("other.ipynb") == "a = 1"
    assert world.read(".ipynb_checkpoints/other-checkpoint.ipynb") == "a = 1"
    assert {one.path for one in result.kept} == {
        b"t.ipynb", b".ipynb_checkpoints/t-checkpoint.ipynb",
    }  # fmt: skip
    world.engine.export(a.id, b"t.ipynb", base / "as-it-was.ipynb")
    assert (base / "as-it-was.ipynb").read_text() == "a = 1"
    world.restore(a.id, include_documents=True)
    assert world.read("t.ipynb") == "a = 1"


def test_13_no_notebook_is_rolled_back_when_it_is_not_known_which_one_runs(
    make_world: Make,
) -> None:
    world = make_world(document=None)
    world.write("one.ipynb", "a = 1")
    world.write("x.txt", "a")
    a = world.capture()
    world.write("one.ipynb", "b = 2")
    world.write("new/two.ipynb", "new")
    world.write("new/y.txt", "y")
    world.write("x.txt", "b")
    world.restore(a.id)
    assert world.read("one.ipynb") == "b = 2"
    assert world.read("new/two.ipynb") == "new"
    assert not (world.W / "new/y.txt").exists()
    assert world.read("x.txt") == "a"


def make_before(world: World) -> None:
    world.write("keep.txt", "1")
    for number in range(500):
        world.write(f"d/{number}", str(number))


def spoil(world: World) -> None:
    subprocess.run(
        "rm -rf d && echo new > new.txt && echo 2 > keep.txt", shell=True, cwd=world.W, check=True
    )


def test_14_a_missing_blob_is_found_before_anything_changes(make_world: Make) -> None:
    world = make_world()
    make_before(world)
    before = world.picture()
    a = world.capture()
    digest = next(e.chunks[0][2] for _, p, e in world.engine.manifest(a.id) if p == b"d/77")
    blob = world.base / "store/blobs" / digest[:2] / digest
    spoil(world)
    spoilt = world.picture()
    aside = blob.with_name("aside")
    blob.rename(aside)
    plan = world.engine.plan_restore(a.id)
    assert [path for path, _ in plan.problems] == [b"d/77"]
    with pytest.raises(WorkspaceRestoreRefused, match="blob"):
        world.engine.restore(plan)
    assert_same(spoilt, world.picture())
    aside.rename(blob)
    world.restore(a.id)
    assert_same(before, world.picture())


@pytest.mark.root
@pytest.mark.parametrize("who", ["root"], indirect=True)
def test_14_an_immutable_file_is_found_before_anything_changes(
    make_world: Make, ability: Callable[[str, bool], None]
) -> None:
    world = make_world()
    make_before(world)
    before = world.picture()
    a = world.capture()
    spoil(world)
    spoilt = world.picture()
    target = str(world.W / "keep.txt")
    done = subprocess.run(["chattr", "+i", target], check=False, capture_output=True)
    ability("immutable files", done.returncode == 0)
    try:
        with pytest.raises(WorkspaceRestoreRefused, match=r"keep\.txt.*immutable"):
            world.restore(a.id)
        assert_same(spoilt, world.picture())
    finally:
        subprocess.run(["chattr", "-i", target], check=True)
    world.restore(a.id)
    assert_same(before, world.picture())


def test_14_a_swap_that_fails_is_undone(make_world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernel_runtime.engines.workspace import faults

    world = make_world()
    make_before(world)
    before = world.picture()
    a = world.capture()
    spoil(world)
    spoilt = world.picture()
    seen: list[str] = []

    def fail_at_the_last_swap(name: str) -> None:
        seen.append(name)
        if name == "swap" and seen.count("swap") == 3:
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(faults, "hook", fail_at_the_last_swap)
    with pytest.raises(WorkspaceRestoreFailed, match=r"new\.txt: Operation not permitted"):
        world.restore(a.id)
    monkeypatch.setattr(faults, "hook", None)
    assert_same(spoilt, world.picture())
    assert not world.leftovers()
    world.restore(a.id)
    assert_same(before, world.picture())


def test_store_08_damaged_content_heals_and_a_partial_restore_is_possible(
    make_world: Make,
) -> None:
    world = make_world()
    for name in "abcdef":
        world.write(name, name * 100_000)
    a = world.capture()
    digest = next(e.chunks[0][2] for _, p, e in world.engine.manifest(a.id) if p == b"c")
    blob = world.base / "store/blobs" / digest[:2] / digest
    for damage in ("flip", "cut", "delete"):
        data = bytearray(blob.read_bytes())
        if damage == "flip":
            data[len(data) // 2] ^= 1
            blob.write_bytes(data)
        elif damage == "cut":
            blob.write_bytes(data[:100])
        else:
            blob.unlink()
        for name in "abcdef":
            world.write(name, "new")
        new = world.picture()
        with pytest.raises((WorkspaceRestoreRefused, WorkspaceRestoreFailed), match="c: "):
            world.restore(a.id)
        assert_same(new, world.picture())
        result = world.restore(a.id, allow_missing=True)
        assert [one.path for one in result.kept] == [b"c"]
        assert world.read("c") == "new"
        assert all(world.read(name) == name * 100_000 for name in "abdef")
        if damage != "delete":
            assert [bad for bad, _ in world.store.check()] == [digest]
        world.write("c", "c" * 100_000)
        b = world.capture()
        assert not list(world.store.check())
        world.restore(b.id)
        world.restore(a.id)
        assert world.read("c") == "c" * 100_000


def test_store_13_the_store_inside_the_workspace(base: Path, who: str) -> None:
    world = World.__new__(World)
    world.base, world.W, world.options = base, base, {}
    from kernel_runtime.store.blobs import BlobStore

    world.store = BlobStore(base / "deep" / "store")
    os.symlink("deep/store", base / "link")
    engine = world.new_engine()
    world.engine = engine
    world.write("f", "1")
    a = engine.capture()
    assert {one.path for one in a.left_out} == {b"deep/store", b"journal"}
    world.write("f", "2")
    b = engine.capture()
    world.write("f", "3")
    c = engine.capture()
    for snapshot, text in ((a, "1"), (b, "2"), (c, "3")):
        world.restore(snapshot.id)
        assert world.read("f") == text
    size = sum(p.lstat().st_size for p in (base / "deep/store").rglob("*"))
    assert size < 5 * MIB
    assert (base / "deep/store/blobs").is_dir()


def test_group_01_what_another_program_wrote_meanwhile_is_kept_aside(make_world: Make) -> None:
    world = make_world()
    world.write("shared.csv", "1\n")
    world.write("old/x", "x")
    a = world.capture()
    world.write("shared.csv", "1\n2-by-A\n")
    world.write("made/since", "m")
    plan = world.engine.plan_restore(a.id)
    safety = world.engine.capture(rules_of=a.id)
    world.write("shared.csv", "1\n2-by-A\n3-by-B\n")
    world.write("made/later", "by-B")
    result = world.engine.restore(plan, foreign=safety)
    assert world.read("shared.csv") == "1\n"
    assert not (world.W / "made").exists()
    kept = {one.path: one.saved_as for one in result.kept_aside}
    assert kept.keys() == {b"shared.csv", b"made/later"}
    assert result.kept_aside_id is not None
    world.engine.collect_garbage()
    read = {
        path: b"".join(world.engine.read_file(result.kept_aside_id, saved))
        for path, saved in kept.items()
    }
    assert read == {b"shared.csv": b"1\n2-by-A\n3-by-B\n", b"made/later": b"by-B"}


def test_a_file_that_is_written_all_the_time(make_world: Make) -> None:
    world = make_world()
    world.write("quiet", "q")
    stop = threading.Event()

    def scribble() -> None:
        with open(world.W / "log", "r+b", buffering=0) as log:
            while not stop.is_set():
                log.seek(0)
                log.write(os.urandom(4 * MIB))

    world.write("log", b"0" * (32 * MIB))
    writer = threading.Thread(target=scribble)
    writer.start()
    time.sleep(0.05)
    try:
        a = world.capture()
    finally:
        stop.set()
        writer.join()
    for one in a.left_out:
        assert (one.path, one.absent) == (b"log", False)
        assert "changed while it was read" in one.reason
    content = (world.W / "log").read_bytes()
    b = world.capture()
    assert not b.left_out
    world.write("log", "gone")
    world.restore(b.id)
    assert (world.W / "log").read_bytes() == content
    assert stat.S_ISREG(os.lstat(world.W / "quiet").st_mode)
    assert sys.platform == "linux"
