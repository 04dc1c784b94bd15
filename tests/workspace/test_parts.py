"""The parts for themselves: chunks, manifests, names, rules, the store."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workspace_world import World, assert_same

from kernel_runtime.engines.workspace import access, content, tree
from kernel_runtime.engines.workspace.engine import WorkspaceEngine
from kernel_runtime.engines.workspace.errors import SnapshotUnknown, WorkspaceRestoreRefused
from kernel_runtime.engines.workspace.names import printable, to_bytes, to_text
from kernel_runtime.store import holes
from kernel_runtime.store.blobs import BlobDamaged, BlobStore, digest_of
from kernel_runtime.store.leases import Lease

Make = Callable[..., World]
NAME = st.binary(min_size=1, max_size=20).filter(
    lambda b: b"/" not in b and b"\0" not in b and b not in (b".", b"..")
)


@given(NAME, NAME)
def test_names(a: bytes, b: bytes) -> None:
    assert to_bytes(to_text(a)) == a
    for encoding in ("ascii", "utf-8"):
        shown = printable(a, encoding)
        assert shown.encode(encoding).decode(encoding) == shown
        assert shown.isprintable()
        assert (shown == printable(b, encoding)) == (a == b)


@given(
    st.lists(NAME, unique=True, max_size=300), st.data(),
)  # fmt: skip
def test_rows_come_back(names: list[bytes], data: st.DataObject) -> None:
    for name in names[:5]:
        kind = data.draw(st.sampled_from("fdlp"))
        entry = tree.make_entry(
            name, kind, 0o4755, 1, 2, -5, size=10 if kind == "f" else 0,
            chunks=((3, 4, digest_of(b"x")),) if kind == "f" else (),
            target=b"\xff" if kind == "l" else b"", tree="t" if kind == "d" else "",
            link="1:2" if kind == "f" else "", xattrs=(("user.x", b"\0\xff"),),
        )  # fmt: skip
        assert tree.decode_row(tree.encode_row(entry)) == entry


def test_a_lease_closes_its_own_descriptor_only(tmp_path: Path) -> None:
    lease = BlobStore(tmp_path / "store").lease("one")
    lease.close()
    others = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
    lease.close()
    for fd in others:
        os.close(fd)  # fails if the lease did


def test_a_lease_whose_file_cannot_be_removed(tmp_path: Path) -> None:
    lease = Lease(tmp_path / "lease")
    (tmp_path / "lease").unlink()
    (tmp_path / "lease").mkdir()
    with pytest.raises(OSError):
        lease.close()
    other = os.open("/dev/null", os.O_RDONLY)
    lease.close()
    os.close(other)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b"])
def test_a_manifest_from_elsewhere_cannot_name_a_way_out(name: str) -> None:
    with pytest.raises(tree.TreeDamaged):
        tree.decode_row([name, "p", 0, 0, 0, 0])


def test_a_change_in_a_large_directory_costs_one_page(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "store")
    entries = {
        name: tree.make_entry(name, "f", 0o644, 0, 0, n, size=1, chunks=((0, 1, digest_of(name)),))
        for n in range(20_000)
        for name in [b"file-%05d" % n]
    }
    digest, pages = tree.write_tree(store, entries, entries.__getitem__)
    written = store.put_bytes
    assert list(tree.read_tree(store, digest)) == [entries[n] for n in sorted(entries)]
    changed = b"file-07777"
    entries[changed] = tree.make_entry(changed, "f", 0o600, 0, 0, 0, size=0)
    del entries[b"file-00100"]
    entries[b"file-x"] = tree.make_entry(b"file-x", "p", 0o600, 0, 0, 0)
    names = [changed, b"file-00100", b"file-x"]
    again, _ = tree.write_tree(store, entries, entries.__getitem__, names, pages)
    assert store.put_bytes - written < written / 20
    fresh, _ = tree.write_tree(store, entries, entries.__getitem__)
    assert again == fresh  # however it came about


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 4 << 20, (4 << 20) + 1, 1 << 30])
def test_chunk_sizes(size: int) -> None:
    step = content.chunk_size(size)
    assert content.MIN_CHUNK <= step <= content.MAX_CHUNK
    assert size / step <= max(64, size / content.MAX_CHUNK)


def test_segments_of_a_sparse_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with open(path, "wb") as file:
        file.truncate(64 << 20)
        for at in (0, 8 << 20, (8 << 20) + 8192, (64 << 20) - 1):
            file.seek(at)
            file.write(b"x")
        file.flush()
        os.fsync(file.fileno())
    fd = os.open(path, os.O_RDONLY)
    segments = list(holes.data_segments(fd, 64 << 20))
    os.close(fd)
    assert sum(end - begin for begin, end in segments) < 1 << 20
    for at in (0, 8 << 20, (8 << 20) + 8192, (64 << 20) - 1):
        assert any(begin <= at < end for begin, end in segments)
    assert all(a[1] < b[0] for a, b in pairwise(segments))


def test_blobs_are_private_and_verified(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        store = BlobStore(tmp_path / "store")
        digest = store.put(b"secret")
        store.pin(digest)
        store.flush()
    finally:
        os.umask(old)
    for where, directories, files in os.walk(tmp_path / "store"):
        for name in directories:
            assert os.stat(os.path.join(where, name)).st_mode & 0o777 == 0o700
        for name in files:
            assert os.stat(os.path.join(where, name)).st_mode & 0o777 == 0o600
    assert store.get(digest) == b"secret"
    file = tmp_path / "store/blobs" / digest[:2] / digest
    file.write_bytes(b"secreT")
    with pytest.raises(BlobDamaged, match="heal it"):
        store.get(digest)
    assert store.put(b"secret") == digest
    assert store.get(digest) == b"secret"


def test_a_sweep_spares_what_is_found_again_meanwhile(tmp_path: Path) -> None:
    store, other = BlobStore(tmp_path / "store"), BlobStore(tmp_path / "store")
    wanted, unwanted = store.put(b"wanted"), store.put(b"unwanted")
    time.sleep(0.05)
    with store.collecting() as (roots, before_ns):
        assert not roots
        other.put(b"wanted")
        assert store.sweep(frozenset(), before_ns=before_ns).removed == 1
    assert store.has(wanted) and not store.has(unwanted)


def test_collecting_while_others_capture(make_world: Make) -> None:
    """Two engines share a directory and a store; one captures while the other collects."""
    world = make_world()
    for number in range(40):
        world.write(f"d/{number}", str(number))
    other = world.new_engine()
    stop = threading.Event()
    failures: list[BaseException] = []

    def collect() -> None:
        try:
            while not stop.is_set():
                other.release([other.capture().id])
                other.collect_garbage()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=collect)
    thread.start()
    kept = []
    for round_ in range(40):
        world.write(f"d/{round_}", f"again {round_}")
        world.write("d/0", str(round_ % 3))
        kept.append((world.capture(), round_))
        if round_ % 2:
            world.engine.release([kept.pop()[0].id])
    stop.set()
    thread.join()
    assert not failures
    for snapshot, round_ in kept:
        found = {
            path: b"".join(world.engine.read_file(snapshot.id, path))
            for _, path, entry in world.engine.manifest(snapshot.id)
            if entry.kind == "f"
        }
        assert found[b"d/0"] == str(round_ % 3).encode()
        assert len(found) == 40
    for snapshot, _ in kept:
        world.engine.release([snapshot.id])
    other.close()
    world.engine.close()
    world.engine = world.new_engine()
    time.sleep(0.05)  # what is as old as the collection itself is spared
    world.engine.collect_garbage()
    assert not list(world.store.blobs())


def test_a_thousand_checkpoints_of_a_large_tree_stay_small(make_world: Make) -> None:
    world = make_world()
    for number in range(2000):
        world.write(f"{number % 20}/{number}", "")
    world.capture()
    start = world.store.put_bytes
    for number in range(100):
        world.write("3/changing", str(number))
        world.capture()
    # A hundred whole manifests would be about 15 MB.
    assert world.store.put_bytes - start < 2_000_000


def test_large_files_are_held_by_a_link(make_world: Make) -> None:
    world = make_world(copy_limit=100_000)
    world.write("big", b"b" * 200_000)
    world.write("sparse", "")
    os.truncate(world.W / "sparse", 1 << 30)
    before = world.picture()
    a = world.capture()
    assert [(one.path, one.absent) for one in a.left_out] == [(b"big", False)]
    assert "held against deletion" in a.left_out[0].reason
    assert a.copied_bytes < 10_000
    assert world.capture().changed == 0
    (world.W / "big").unlink()
    result = world.restore(a.id)
    assert not result.warnings
    assert (world.W / "big").read_bytes() == b"b" * 200_000
    assert before[b"big"][5] == os.stat(world.W / "big").st_mtime_ns
    with open(world.W / "big", "r+b") as file:
        file.write(b"in place")
    result = world.restore(a.id)
    assert any("written in place" in why for _, why in result.warnings)


def test_without_user_namespaces_locked_files_are_named(
    make_world: Make, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if who == "root":
        return  # root reads everything
    world = make_world()
    world.write("locked", "k")
    world.write("nox/f", "in")
    os.chmod(world.W / "locked", 0)
    os.chmod(world.W / "nox", 0)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(access.subprocess, "Popen", refuse)
    world.write("ok", "1")
    a = world.capture()
    assert {(one.path, one.absent) for one in a.left_out} == {(b"locked", True), (b"nox", True)}
    world.write("ok", "2")
    world.restore(a.id)
    assert world.read("ok") == "1"
    os.chmod(world.W / "locked", 0o600)
    assert world.read("locked") == "k"


def test_what_is_nested_too_deep_is_named(
    make_world: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernel_runtime.engines.workspace import scan

    monkeypatch.setattr(scan, "MAX_DEPTH", 3)
    world = make_world()
    world.write("a/b/c/d/e", "deep")
    a = world.capture()
    assert [one.path for one in a.left_out] == [b"a/b/c/d"]
    world.write("a/b/x", "new")
    world.restore(a.id)
    assert world.read("a/b/c/d/e") == "deep"


def test_sockets_are_left_alone(make_world: Make) -> None:
    import socket

    world = make_world()
    a = world.capture()
    os.chdir(world.W)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("sock")
        os.chdir("/")
        b = world.capture()
        assert [(one.path, one.absent) for one in b.left_out] == [(b"sock", True)]
        world.write("d/f", "x")
        world.restore(a.id)
        assert os.listdir(world.W) == ["sock"]


def test_estimate(make_world: Make) -> None:
    world = make_world(exclude=["left"])
    for number in range(20):
        world.write(f"d/{number}", "x")
    world.write("left/x", "x")
    assert world.engine.estimate().files == 20
    assert world.engine.estimate().complete
    assert not world.engine.estimate(max_files=5).complete


def test_a_stale_plan_is_refused(make_world: Make) -> None:
    world = make_world()
    world.write("f", "1")
    a = world.capture()
    plan = world.engine.plan_restore(a.id)
    world.capture()
    with pytest.raises(WorkspaceRestoreRefused, match="before the last capture"):
        world.engine.restore(plan)
    with pytest.raises(SnapshotUnknown):
        world.engine.plan_restore("0" * 64)


def test_unchanged_files_keep_their_inode(make_world: Make) -> None:
    world = make_world()
    world.write("same", "same")
    world.write("mode", "mode")
    world.write("other", "one")
    a = world.capture()
    inodes = {n: os.stat(world.W / n).st_ino for n in ("same", "mode")}
    os.chmod(world.W / "mode", 0o600)
    world.write("other", "two")
    result = world.restore(a.id)
    assert {n: os.stat(world.W / n).st_ino for n in ("same", "mode")} == inodes
    assert (result.written, result.meta_only, result.deleted) == (1, 1, 0)


def test_renames_are_recognised(make_world: Make) -> None:
    world = make_world()
    world.write("old/name", "some content")
    world.write("x", "x")
    a = world.capture()
    os.rename(world.W / "old/name", world.W / "new")
    os.chmod(world.W / "x", 0o600)
    found = {(one.kind, one.path, one.old_path) for one in world.engine.current_changes(a.id)}
    assert found == {("renamed", b"new", b"old/name"), ("mode", b"x", None)}
    kinds = {(one.kind, one.path) for one in world.engine.diff(a.id, None)}
    assert kinds == {("renamed", b"old/name"), ("mode", b"x")}


def test_a_moved_workspace_is_restored_where_it_is(base: Path) -> None:
    world = World(base)
    world.write("f", "one")
    before = world.picture()
    a = world.capture()
    world.engine.close()
    os.rename(base / "W", base / "P2")
    os.mkdir(base / "W")
    world.W = base / "P2"
    world.engine = world.new_engine()
    world.write("f", "two")
    world.restore(a.id)
    assert_same(before, world.picture())
    assert os.listdir(base / "W") == []


def test_the_modules_import_where_there_is_no_linux() -> None:
    script = """
import sys
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
import ctypes, subprocess, tempfile, multiprocessing, socket
sys.platform = "win32"
from pathlib import Path
from kernel_runtime.engines.workspace.engine import WorkspaceEngine
from kernel_runtime.engines.workspace.errors import WorkspaceUnsupported
try:
    WorkspaceEngine([Path(".")], None, journal_dir=Path("."))
except WorkspaceUnsupported as refused:
    print("refused", refused)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=root
    )
    assert done.stdout.startswith("refused"), done.stderr


def test_roots_inside_each_other(base: Path) -> None:
    world = World(base)
    (world.W / "inner").mkdir()
    world.engine.close()
    engine = WorkspaceEngine(
        [world.W, world.W / "inner"], world.store, journal_dir=base / "journal",
        document=world.W / "x.ipynb",
    )  # fmt: skip
    World.opened.append(engine)
    world.engine = engine
    world.write("f", "one")
    world.write("inner/g", "one")
    before = world.picture()
    a = world.capture()
    assert [(one.root, one.path) for one in a.left_out] == [(0, b"inner")]
    world.write("f", "two")
    world.write("inner/g", "two")
    assert {(one.root, one.path) for one in engine.current_changes(a.id)} == {(0, b"f"), (1, b"g")}
    world.restore(a.id)
    assert_same(before, world.picture())


def test_a_document_given_by_way_of_a_symlink(base: Path) -> None:
    world = World(base)
    os.symlink(world.W, base / "alias")
    world.engine.document = base / "alias" / "t.ipynb"
    world.write("t.ipynb", "one")
    world.write("u.ipynb", "one")
    a = world.capture()
    world.write("t.ipynb", "two")
    world.write("u.ipynb", "two")
    world.restore(a.id)
    assert (world.read("t.ipynb"), world.read("u.ipynb")) == ("two", "one")


def test_a_journal_that_is_none(make_world: Make) -> None:
    world = make_world()
    (world.base / "journal").mkdir(exist_ok=True)
    (world.base / "journal/restore-abc.json").write_text("{")
    result = world.engine.recover()
    assert result is not None and result.outcome == "partly"
    assert b"restore-abc.json" in result.problems[0][0]
    os.unlink(world.base / "journal/restore-abc.json")
    assert world.engine.recover() is None
