"""Copies of libraries: made after the image that names them, whatever comes in between."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernel_runtime.engines.criu_libraries import Copies, Library, opened
from kernel_runtime.store import encryption, libraries
from kernel_runtime.store.dumps import DumpStore
from kernel_runtime.store.file_digests import digest_of_file
from kernel_runtime.store.image_model import FileInUse, ImageDamaged, ImageUnusable
from kernel_runtime.store.keys import Keys
from kernel_runtime.store.libraries import OpenFile

SIZES = {"small.so": 1 << 19, "large.so": 5 << 20}  # one is hashed whole, one in pieces


class World:
    """Libraries, and the store of those who have them mapped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: list[OpenFile] = []
        for name, size in SIZES.items():
            (folder / name).write_bytes(os.urandom(size))
            fd = os.open(folder / name, os.O_RDONLY)
            found = os.fstat(fd)
            used = FileInUse(
                str(folder / name), found.st_size, found.st_mtime_ns, found.st_ctime_ns
            )
            self.files.append((fd, used.with_digest(digest_of_file(fd))))

    def store(self) -> DumpStore:
        """As a kernel opens it that has just started."""
        return DumpStore(self.folder / "store", Keys(self.folder / "keys"))

    def image(self) -> str:
        """One that names these libraries, of which there are no copies yet."""
        store = self.store()
        with store.scratch() as files:
            (files / "core.img").write_bytes(b"a process")
            return store.keep(files, {}, libraries=lambda: self.wanted).ref

    @property
    def wanted(self) -> list[Library]:
        return [Library(f"file[1:{fd:x}]", file) for fd, file in self.files]

    def copies(self) -> set[str]:
        """What lies there, but for the list of digests."""
        folder = self.store().libraries.path
        return {path.name for path in folder.iterdir()} - {"files"} if folder.is_dir() else set()

    @property
    def digests(self) -> set[str]:
        return {file.digest for _, file in self.files}

    def replace(self, name: str) -> None:
        """As pip does: the name is another file's."""
        (self.folder / "new").write_bytes(os.urandom(SIZES[name]))
        (self.folder / "new").replace(self.folder / name)

    def check(self, ref: str) -> None:
        """That a restore gets all bytes, and all is what it was."""
        store = self.store()
        with opened(ref, self.wanted, "", store.libraries) as fds:
            for library in self.wanted:
                assert digest_of_file(fds[library.name]) == library.file.digest
        store.verify(ref)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    for fd, _ in found.files:
        os.close(fd)


@contextmanager
def held_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Copying that waits in the middle: set when it is there; to set for it to go on."""
    there, go_on = threading.Event(), threading.Event()
    copy = libraries._copy

    def waiting(source: int, target: int, wanted: Any) -> None:
        os.write(target, b"half of")
        os.lseek(target, 0, os.SEEK_SET)
        there.set()
        assert go_on.wait(60)
        copy(source, target, wanted)

    with monkeypatch.context() as patch:
        patch.setattr(libraries, "_copy", waiting)
        try:
            yield there, go_on
        finally:
            go_on.set()


def test_an_image_is_whole_before_and_after(world: World) -> None:
    ref = world.image()
    assert world.copies() == set()
    world.check(ref)
    world.store().copy_libraries(world.files)
    assert world.copies() == world.digests
    for name in SIZES:
        world.replace(name)
    world.check(ref)
    # who comes next knows the copies by what they are, and reads none
    known = world.store().libraries.digests
    for digest in world.digests:
        found = (world.store().libraries.path / digest).stat()
        assert known.get(libraries.key_of(found)) == digest
        assert found.st_mode & 0o777 == 0o600


def test_a_file_that_was_replaced_before_it_was_copied(world: World) -> None:
    """The image is not called damaged before that, and is refused with the name after it."""
    ref = world.image()
    world.replace("large.so")
    said = r"large\.so, which it uses, was replaced before the store had a copy of it"
    for refused in (lambda: world.check(ref), lambda: world.store().verify(ref)):
        with pytest.raises(ImageUnusable, match=said) as caught:
            refused()
        assert not isinstance(caught.value, ImageDamaged)
    # whoever has it open can still copy it
    world.store().copy_libraries(world.files)
    world.check(ref)


def test_a_file_that_changes_before_it_is_copied(world: World) -> None:
    """Written to in its place: it is named, and the others are copied."""
    ref = world.image()
    with open(world.folder / "small.so", "r+b") as file:
        file.write(b"otherwise")
    with pytest.raises(OSError, match=r"changed before it was copied: .*small\.so"):
        world.store().copy_libraries(world.files)
    assert world.copies() == {world.files[1][1].digest}
    with pytest.raises(ImageUnusable, match=r"small\.so"):
        world.check(ref)
    assert world.store().refs() == [ref]


def test_a_full_disk(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The image stays, nothing half is left, and the next one has them copied."""
    ref = world.image()

    def full(source: int, target: int, wanted: Any) -> None:
        os.write(target, b"half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def scenario() -> None:
        copies = Copies(world.store())
        with monkeypatch.context() as patch:
            patch.setattr(libraries, "_copy", full)
            assert await copies.begin(world.files) == os.strerror(errno.ENOSPC)
        assert world.copies() == set()
        world.check(ref)
        assert await copies.begin(world.files) == ""
        assert world.copies() == world.digests
        await copies.close(60)

    asyncio.run(scenario())


def test_a_sweep_meanwhile(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for nobody, and deletes neither what is being made nor what has been."""
    ref = world.image()
    gone = world.image()

    def sweep(*kept: str) -> None:
        world.store().sweep(kept, before_ns=time.time_ns(), idle=True)

    async def scenario() -> None:
        copies = Copies(world.store())
        with held_up(monkeypatch) as (there, go_on):
            making = copies.begin(world.files)
            await asyncio.to_thread(there.wait, 60)
            assert not copies.are_made
            half = world.copies()
            sweep(ref)
            assert world.copies() == half != set()
            assert sorted(world.store().refs()) == sorted([ref, gone])
            go_on.set()
            assert await making == ""
        sweep(ref)
        assert world.store().refs() == [ref] and world.copies() == world.digests
        sweep()
        assert world.copies() == set()
        await copies.close(60)

    asyncio.run(scenario())


def test_the_end_waits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as it may; then what is under way is given up, and nothing half is left."""
    ref = world.image()

    async def scenario() -> None:
        copies = Copies(world.store())
        making = copies.begin(world.files)
        await copies.close(60)
        assert making.done() and copies.are_made and world.copies() == world.digests
        world.store().sweep((), before_ns=time.time_ns(), idle=True)

        copies = Copies(world.store())
        with held_up(monkeypatch) as (there, go_on):
            making = copies.begin(world.files)
            behind = copies.begin(world.files)
            await asyncio.to_thread(there.wait, 60)
            await copies.close(0.01)
            assert not making.done() and not copies.are_made
            go_on.set()
            assert await making == await behind == "the kernel ended before that"
        assert world.copies() == set()

    asyncio.run(scenario())
    assert ref not in world.store().refs()


KILLED = """
import os, signal, sys
from pathlib import Path
from kernel_runtime.store import libraries
from tests.store.test_library_copies import World
world = World.__new__(World)
world.folder = Path(sys.argv[1])
world.files = [(os.open(f.path, os.O_RDONLY), f) for _, f in {files}]
copy = libraries._copy
def until_the_second(source, target, wanted):
    if world.copies() & {{f.digest for _, f in world.files}}:
        os.write(target, b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    copy(source, target, wanted)
libraries._copy = until_the_second
world.store().copy_libraries(world.files)
"""


def test_a_kill_in_between(world: World) -> None:
    """What was finished is there; the next image has the rest made, and a sweep clears up."""
    ref = world.image()
    files = [(0, file) for _, file in world.files]
    code = "from kernel_runtime.store.image_model import FileInUse\n" + KILLED.format(files=files)
    done = subprocess.run([sys.executable, "-c", code, str(world.folder)])
    assert done.returncode == -signal.SIGKILL
    first, second = (file.digest for _, file in world.files)
    assert first in world.copies() and second not in world.copies()
    assert any(name.startswith("tmp-") for name in world.copies())
    world.check(ref)
    missing = world.store().libraries.missing(world.files)
    assert [file.digest for _, file in missing] == [second]
    world.store().copy_libraries(world.files)
    world.store().sweep([ref], before_ns=time.time_ns())
    assert world.copies() == world.digests
    for name in SIZES:
        world.replace(name)
    world.check(ref)


def test_no_copy_in_an_encrypted_store(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image from before it was encrypted is still loaded; nothing plain is added for it."""
    ref = world.image()
    monkeypatch.setattr(encryption, "is_encrypted", lambda directory: True)
    world.store().copy_libraries(world.files)
    assert world.copies() == set()
    monkeypatch.undo()
    world.check(ref)
