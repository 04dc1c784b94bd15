"""What is wrong with an image is named, and then nothing of it is loaded."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import struct
import time
from pathlib import Path

import native_target as tt
import pytest
from image_tools import Images, load
from native_build import built_states
from native_harness import Frozen, World, until

from kernel_runtime.engines.mapped_files import FileDigests
from kernel_runtime.store.image_format import END, RECORD, Tag
from kernel_runtime.store.image_model import (
    FileInUse,
    ImageDamaged,
    ImageNotStored,
    ImageUnusable,
    Written,
)
from kernel_runtime.store.images import PAGE_FILE, ImageStore
from kernel_runtime.store.keys import Keys, KeyUnusable, NotAuthentic, NotTrusted
from kernel_runtime.store.leases import locked

SETUP = """
import os, threading, time
block = bytearray(os.urandom(1 << 20) * 4)
threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
"""


@pytest.fixture
def images(tmp_path: Path) -> Images:
    return Images(tmp_path / "store")


@pytest.fixture
def frozen(world: World) -> Frozen:
    return world.start(SETUP).freeze()


@pytest.fixture
def written(images: Images, frozen: Frozen) -> Written:
    return images.write(frozen)


def file_of(images: Images, written: Written, name: str) -> Path:
    return images.store.path / written.ref / name


def flip(path: Path, at: int) -> None:
    """Change one bit."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["plan", "blocks", PAGE_FILE])
def test_altered(images: Images, written: Written, name: str) -> None:
    path = file_of(images, written, name)
    flip(path, path.stat().st_size // 2)
    with pytest.raises(ImageDamaged) as error:
        images.store.open(written.ref).close()
        images.store.verify(written.ref)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("name", ["manifest", "plan", PAGE_FILE])
def test_missing(images: Images, written: Written, name: str) -> None:
    path = file_of(images, written, name)
    path.unlink()
    with pytest.raises(ImageDamaged) as error:
        images.store.open(written.ref)
    assert str(path) in str(error.value)


def test_cut_off(images: Images, written: Written) -> None:
    path = file_of(images, written, PAGE_FILE)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(ImageDamaged) as error:
        images.store.open(written.ref)
    assert str(path) in str(error.value)


def test_signature(images: Images, written: Written, tmp_path: Path) -> None:
    """Neither another key, nor another image's manifest, nor a changed one."""
    stranger = ImageStore(images.folder, Keys(tmp_path / "other"))
    with pytest.raises(NotTrusted):
        stranger.open(written.ref)
    other = images.store.path / ("0" * 64)
    shutil.copytree(images.store.path / written.ref, other)
    with pytest.raises(ImageDamaged):
        images.store.open(other.name)
    path = file_of(images, written, "manifest")
    path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version":2'))
    with pytest.raises(NotAuthentic):
        images.store.open(written.ref)


def test_copied_store(images: Images, written: Written, world: World, tmp_path: Path) -> None:
    """Other inodes, other times: everything is read and compared, and then it is good."""
    shutil.copytree(images.store.path, tmp_path / "copy" / "images")
    copied = Images(images.folder)
    copied.store = ImageStore(tmp_path / "copy", Keys(images.folder / "keys"))
    loaded = load(copied, written, world)
    assert loaded.ask(tt.PING).error == 0
    path = tmp_path / "copy" / "images" / written.ref / PAGE_FILE
    flip(path, 0)
    with pytest.raises(ImageDamaged):
        copied.store.open(written.ref)


HEAD_CPU = 8 + 16 + 24 + 24  # offset in struct tt_image_head
HEAD_RELEASE = HEAD_CPU + 128


@pytest.mark.parametrize(
    ("at", "what"),
    [(8, "version of time travel"), (HEAD_CPU, "processor"), (HEAD_RELEASE, "kernel"),
     (None, "vdso")],
)  # fmt: skip
def test_other_machine(
    images: Images, written: Written, world: World, at: int | None, what: str
) -> None:
    with images.store.open(written.ref) as image:
        plan = bytearray(image.plan)
        place = plan.index(b"\x7fELF") + 100 if at is None else at
        plan[place] ^= 1
        image.plan = bytes(plan)
        with pytest.raises(ImageUnusable) as error:
            images.load_opened(image, world)
    assert "differs: the " in str(error.value) and what in str(error.value)


def test_file_replaced(images: Images, world: World, folder: Path) -> None:
    """The same bytes are good whatever the times say; other ones are not, nor is no file."""
    library = folder / "private.so"
    shutil.copy(built_states(), library)
    live = world.start(SETUP + f"import ctypes; ctypes.CDLL({str(library)!r})\n")
    written = images.write(live.freeze())
    shutil.copy(library, folder / "other")
    os.replace(folder / "other", library)
    assert load(images, written, world).ask(tt.PING).error == 0
    flip(library, 0x1000)
    with pytest.raises(ImageUnusable) as error:
        images.load(written.ref, world)
    assert f"{library}, which it uses, was replaced" in str(error.value)
    library.unlink()
    with pytest.raises(ImageUnusable) as error:
        images.load(written.ref, world)
    assert str(library) in str(error.value)
    assert live.value("len(block)") == 4 << 20


def test_loader_names_what_it_misses(images: Images, world: World, folder: Path) -> None:
    """Also what goes away between the check and the mapping."""
    library = folder / "private.so"
    shutil.copy(built_states(), library)
    live = world.start(SETUP + f"import ctypes; ctypes.CDLL({str(library)!r})\n")
    written = images.write(live.freeze())
    before = set(world.pids())
    with images.store.open(written.ref) as image:
        library.unlink()
        with pytest.raises(ImageUnusable) as error:
            images.load_opened(image, world)
    assert f"opening {library}" in str(error.value)
    assert live.value("1") and until(lambda: set(world.pids()) <= before)


def test_writing_fails(images: Images, frozen: Frozen) -> None:
    """The writer is killed, or the disk is full: nothing is left, and it can be woken."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        answer = frozen.ask(tt.IMAGE, fds=(theirs.fileno(),))
        theirs.close()
        frozen.world.kill(answer.pid)
        with pytest.raises(ImageNotStored):
            images.store.take_in(ours, images.files.at(""))
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(struct.pack("=II", 99, 0))
        with theirs, pytest.raises(ImageNotStored):
            images.store.take_in(ours, images.files.at(""))

    def full(used: object) -> str:
        raise OSError(28, "No space left on device")

    ours, theirs = socket.socketpair()
    with ours, theirs:
        frozen.ask(tt.IMAGE, fds=(theirs.fileno(),))
        theirs.close()
        with pytest.raises(ImageNotStored, match="No space left"):
            images.store.take_in(ours, full)
    assert images.store.refs() == []
    assert [p.name for p in images.store.path.iterdir()] == ["lock"]
    frozen.world.kill(frozen.live_pid)
    assert frozen.wake().value("len(block)") == 4 << 20


def test_keys_that_cannot_be_read(images: Images) -> None:
    """What the writer says on a processor whose keys it is not given (native/keys.c)."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        theirs.send(RECORD.pack(Tag.END, END.size) + END.pack(errno.EKEYREJECTED, 0, 0))
        with pytest.raises(ImageNotStored, match="keys that sign return addresses"):
            images.store.take_in(ours, images.files.at(""))


def test_key_unusable(images: Images, written: Written) -> None:
    (images.folder / "keys" / "key").chmod(0o644)
    with pytest.raises(KeyUnusable):
        ImageStore(images.folder, Keys(images.folder / "keys")).open(written.ref)


def test_sweep(images: Images, world: World) -> None:
    """An image goes, what others need of it stays; what is new is not touched."""
    live = world.start(SETUP)
    made: list[Written] = []
    for turn in range(3):
        live.run(f"block[{turn} << 16] ^= 1")
        made.append(images.write(live.freeze(), made[-1] if made else None))
    stale = images.store.path / "tmp-left-over"
    stale.mkdir()
    assert images.store.sweep(set(), before_ns=time.time_ns()) == 0  # all are new
    assert len(images.store.refs()) == 3 and not stale.exists()
    later = time.time_ns() + 120 * 10**9
    with locked(images.store.path, exclusive=False):  # somebody writes
        assert images.store.sweep(set(), before_ns=later) == 0
    assert images.store.sweep({made[2].ref}, before_ns=later) > 0
    assert images.store.refs() == [made[2].ref]
    with pytest.raises(ImageDamaged):
        images.store.open(made[0].ref)
    images.store.verify(made[2].ref)
    live.kill()
    assert load(images, made[2], world).wake().value("len(block)") == 4 << 20
    assert images.store.sweep(set(), before_ns=later) > 0
    assert [p.name for p in images.store.path.iterdir()] == ["lock"]


def test_digest_of_a_file_that_changes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    found = path.stat()
    used = FileInUse(str(path), found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    digests = FileDigests()
    assert digests.digest(used, "") == digests.digest(used, "")
    while path.stat().st_ctime_ns == found.st_ctime_ns:  # before Linux 6.13 in the same tick
        path.write_bytes(b"two")
    with pytest.raises(OSError, match="changed"):
        digests.digest(used, "")
