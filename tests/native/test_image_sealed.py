"""Images in an encrypted store: nothing in it is plain, and what comes back is what was written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import native_build
import native_target as tt
import pytest
from image_tools import Images, load
from native_harness import Frozen, World

from kernel_runtime.store import encryption
from kernel_runtime.store.cipher import OVERHEAD
from kernel_runtime.store.encryption import Secret
from kernel_runtime.store.image_model import ImageDamaged, ImageUnusable, Written
from kernel_runtime.store.images import PAGE_FILE

PIECE = 16 + (1 << 20) + OVERHEAD  # to the end of the first one
SETUP = """
import hashlib, os, sys, threading, time
word = bytes(reversed(b"TERCES-YREV"))
block = bytearray(os.urandom(1 << 16) * 80)
block[99:99 + len(word)] = word
threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
def digest():
    return hashlib.sha256(block).hexdigest()
first = digest()
"""


@pytest.fixture
def images(tmp_path: Path) -> Images:
    store = tmp_path / "store"
    encryption.turn_on(store, Secret(os.urandom(32)), "hkdf-sha256")
    return Images(store)


@pytest.fixture
def another() -> Iterator[World]:
    """A world in which nothing has run: the old ids are free."""
    made = native_build.make_world("user")
    yield made
    made.close()


def is_plain(images: Images, *words: bytes) -> bool:
    files = [path for path in images.store.path.rglob("*") if path.is_file()]
    assert len(files) >= 4
    return any(word in path.read_bytes() for path in files for word in words)


def test_written_after_one_another_and_loaded(images: Images, world: World) -> None:
    target = world.start(SETUP)
    frozen = target.freeze()
    first = images.write(frozen)
    frozen.quit()
    again = images.write(target.freeze(), first)
    assert again.stored_bytes < first.stored_bytes / 2
    target.run("block[1 << 20] ^= 1; second = digest()")
    third = images.write(target.freeze(), again)
    assert third.stored_bytes < first.stored_bytes / 2
    assert not is_plain(images, b"VERY-SECRET", b"python", b"/lib", b"TTIMAGE")
    assert not images.store.plain()
    for written, expected in ((first, "first"), (again, "first"), (third, "second")):
        images.store.verify(written.ref)
        with images.store.open(written.ref) as image:
            assert not any(run.lazy for run in image.parsed().runs)
            with pytest.raises(OSError):
                os.pwrite(os.dup(image.page_files[0]), b"x", 0)
        fresh = native_build.make_world("user")
        woken = load(images, written, fresh).wake()
        assert woken.value(f"digest() == {expected} and word in block") is True
        fresh.close()


@pytest.fixture
def frozen(world: World) -> Frozen:
    return world.start(SETUP).freeze()


@pytest.fixture
def written(images: Images, frozen: Frozen) -> Written:
    return images.write(frozen)


@pytest.mark.parametrize("name", ["manifest", "plan", PAGE_FILE])
@pytest.mark.parametrize("how", ["bit", "cut off", "gone"])
def test_damaged(images: Images, written: Written, name: str, how: str) -> None:
    path = images.store.path / written.ref / name
    data = bytearray(path.read_bytes())
    if how == "gone":
        path.unlink()
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data if how == "bit" else data[: len(data) // 2])
    with pytest.raises(ImageDamaged) as error:
        images.store.open(written.ref)
    assert str(path) in str(error.value)


def test_pieces_in_each_other_s_place(images: Images, frozen: Frozen, written: Written) -> None:
    path = images.store.path / written.ref / PAGE_FILE
    data = path.read_bytes()
    path.write_bytes(
        data[:16] + data[PIECE : 2 * PIECE - 16] + data[16:PIECE] + data[2 * PIECE - 16 :]
    )
    with pytest.raises(ImageDamaged, match="does not hold what was written"):
        images.store.open(written.ref)
    other = images.write(frozen)
    shutil.copyfile(images.store.path / other.ref / PAGE_FILE, path)
    with pytest.raises(ImageDamaged, match="does not hold what was written"):
        images.store.open(written.ref)
    images.store.verify(other.ref)


def test_another_key_and_none(images: Images, written: Written) -> None:
    header = images.folder / encryption.FILE_NAME
    header.unlink()
    with pytest.raises(ImageUnusable, match="not encrypted any more"):
        images.store.open(written.ref)
    encryption.turn_on(images.folder, Secret(os.urandom(32)), "hkdf-sha256")
    with pytest.raises(ImageDamaged, match="was altered"):
        images.store.open(written.ref)


def test_encrypted_since(tmp_path: Path, world: World, another: World) -> None:
    """What was there before is used as it is, and nothing that is new refers to it."""
    images = Images(tmp_path / "store")
    target = world.start(SETUP)
    before = images.write(target.freeze())
    assert images.store.plain() == [images.store.path / before.ref]
    encryption.turn_on(images.folder, Secret(os.urandom(32)), "hkdf-sha256")
    since = images.write(target.freeze(), before)
    assert images.store.plain() == [images.store.path / before.ref]
    images.store.sweep({since.ref}, before_ns=1 << 62)
    assert images.store.refs() == [since.ref] and not is_plain(images, b"VERY-SECRET")
    assert load(images, since, another).ask(tt.PING).error == 0


def test_swept(images: Images, world: World) -> None:
    """A page file that another image refers to stays, sealed as its manifest is."""
    target = world.start(SETUP)
    first = images.write(target.freeze())
    second = images.write(target.freeze(), first)
    images.store.sweep({second.ref}, before_ns=1 << 62)
    assert images.store.refs() == [second.ref]
    images.store.verify(second.ref)
    images.store.sweep(set(), before_ns=1 << 62)
    assert not list(images.store.path.glob("*/*"))
