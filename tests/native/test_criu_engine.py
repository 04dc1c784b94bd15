"""The engine ``criu`` as a supervisor uses it, in real sandboxes: written, all killed, put back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import test_image_engine
from native_build import compile_c, need
from test_image_engine import Target, freeze, new_sandbox, start, wake

from kernel_runtime.engines import criu_program
from kernel_runtime.engines.base import Frozen
from kernel_runtime.engines.criu import CriuEngine
from kernel_runtime.engines.criu_program import CriuUnusable
from kernel_runtime.engines.fork import ForkEngine
from kernel_runtime.errors import CheckpointRefused, RestoreFailed
from kernel_runtime.sandbox.base import InitClient
from kernel_runtime.sandbox.namespaces import NamespaceSandbox
from kernel_runtime.sandbox.none import NoSandbox
from kernel_runtime.store import libraries
from kernel_runtime.store.dumps import DumpStore
from kernel_runtime.store.image_model import ImageDamaged
from kernel_runtime.store.keys import Keys

pytestmark = pytest.mark.root


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tuple[CriuEngine, Path]]:
    try:
        criu_program.may_run()
        criu_program.find()
    except CriuUnusable as error:
        need(str(error))
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        store = DumpStore(tmp_path / "store", Keys(tmp_path / "keys"))
        yield CriuEngine(store, Path(folder)), Path(folder)


@pytest.mark.parametrize("kind", [NamespaceSandbox, NoSandbox])
def test_goes_on_in_another_sandbox(
    kind: type[InitClient], engine: tuple[CriuEngine, Path]
) -> None:
    images, folder = engine

    async def scenario() -> None:
        sandbox = await new_sandbox(kind)
        fork = ForkEngine(folder, keep_ids=sandbox.ids_kept)
        target = await start(sandbox, folder)
        pid = target.ask({"value": "os.getpid()"})
        frozen = await freeze(target, sandbox, folder, "first")
        written = await images.write(frozen, sandbox, details={"of": "first"})
        for turn in range(3):
            await sandbox.close()
            sandbox = await new_sandbox(kind)
            loaded = await images.load(written.ref, sandbox, checkpoint=frozen.checkpoint)
            target = await wake(fork, loaded)
            assert target.ask({"value": "next(half)"}) == 5 + turn
            assert target.ask({"value": "os.getpid()"}) == pid or not sandbox.ids_kept
            target.ask({"run": "task.result(60)"})
            counts = "[m := n, [time.sleep(.01) for _ in range(5999) if n == m], n > m][2]"
            assert target.ask({"value": counts})
            frozen = await freeze(target, sandbox, folder, f"again{turn}")
            written = await images.write(frozen, sandbox)
            await fork.drop(loaded)
        await sandbox.close()

    asyncio.run(scenario())


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def sign_anew(image: Path) -> None:
    """As somebody does who has another key."""
    other = DumpStore(image.parents[1], Keys(image.parents[1] / "other"))
    with other.scratch() as files:
        for path in (image / "files").iterdir():
            shutil.copy2(path, files)
        ref = other.keep(files, {}).ref
    shutil.rmtree(image)
    (image.parent / ref).rename(image)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit in the manifest": (lambda image: flip(image / "manifest"), "was altered"),
    "a flipped bit in the pages": (lambda image: flip(image / "files" / "pages-1.img"), "pages-1"),
    "a flipped bit in the seal": (lambda image: flip(image / "seal"), ""),
    "no pages": (lambda image: (image / "files" / "pages-1.img").unlink(), "pages-1.img"),
    "no manifest": (lambda image: (image / "manifest").unlink(), "manifest"),
    "one more file": (lambda image: (image / "files" / "more.img").touch(), "more.img"),
    "another key": (sign_anew, "not yours"),
}


def test_damaged_images_are_not_loaded(engine: tuple[CriuEngine, Path]) -> None:
    """Each is refused with its name, and no process is left; what is whole is loaded."""
    images, folder = engine

    async def scenario() -> None:
        sandbox = await new_sandbox(NamespaceSandbox)
        frozen = await freeze(await start(sandbox, folder), sandbox, folder, "first")
        written = await images.write(frozen, sandbox)
        await sandbox.close()
        image = images._store.path / written.ref
        shutil.copytree(image, folder / "whole")
        sandbox = await new_sandbox(NamespaceSandbox)
        for name, (damage, said) in DAMAGES.items():
            shutil.rmtree(image)
            shutil.copytree(folder / "whole", image)
            damage(image)
            if not said:  # all is read and compared, and is what it was
                images._store.verify(written.ref)
                continue
            with pytest.raises(RestoreFailed, match=said):
                await images.load(written.ref, sandbox, checkpoint="first")
            assert (await sandbox.request("list"))["pids"] == [], name
        shutil.rmtree(image)
        shutil.copytree(folder / "whole", image)
        loaded = await images.load(written.ref, sandbox, checkpoint="first")
        target = await wake(ForkEngine(folder, keep_ids=True), loaded)
        assert target.ask({"value": "next(half)"}) == 5
        await sandbox.close()

    asyncio.run(scenario())


LIBRARY = "const char filling[1 << 19] = {1}; static int n; int next(void) { return %s + n++; }"
"""Large enough to be kept by reference, with a page of its own that is written to."""


def build(folder: Path, first: int) -> Path:
    source = folder / "library.c"
    source.write_text(LIBRARY % first)
    return compile_c(folder / f"built{first}.so", "-shared", "-fPIC", str(source))


def test_libraries(engine: tuple[CriuEngine, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The session's own where it is the same still, else the store's copy; once for all images."""
    images, folder = engine
    store, library = images._store, folder / "used.so"
    build(folder, 100).rename(library)
    load = f"import ctypes; library = ctypes.CDLL({str(library)!r})\n"
    monkeypatch.setattr(test_image_engine, "SETUP", load + test_image_engine.SETUP)
    mapped = "[line.split()[-1] for line in open('/proc/self/maps') if 'r-xp' in line]"

    async def scenario() -> None:
        sandbox = await new_sandbox(NamespaceSandbox)
        fork = ForkEngine(folder, keep_ids=True)
        target = await start(sandbox, folder)
        assert target.ask({"value": "library.next()"}) == 100
        frozen = await freeze(target, sandbox, folder, "first")
        refs = [(await images.write(frozen, sandbox)).ref for _ in range(2)]
        assert [await images.copied(ref) for ref in refs] == ["", ""]
        copies = sorted(path.name for path in store.libraries.path.iterdir())
        program = sum(path.stat().st_size for path in (store.path / refs[0] / "files").iterdir())
        whole = sum(path.stat().st_size for path in store.libraries.path.iterdir())
        assert program < whole

        async def back(ref: str, expected: int) -> tuple[Target, InitClient]:
            sandbox = await new_sandbox(NamespaceSandbox)
            target = await wake(fork, await images.load(ref, sandbox, checkpoint="x"))
            assert target.ask({"value": "library.next()"}) == expected
            return target, sandbox

        await sandbox.close()
        target, sandbox = await back(refs[0], 101)
        assert str(library) in target.ask({"value": mapped})
        await sandbox.close()
        build(folder, 500).rename(library)  # as pip does: the name is another file's
        target, sandbox = await back(refs[0], 101)
        assert str(library) not in target.ask({"value": mapped})
        again = await freeze(target, sandbox, folder, "again")  # it has the store's copy mapped
        refs.append((await images.write(again, sandbox)).ref)
        await sandbox.close()
        library.unlink()
        for ref, expected in ((refs[1], 101), (refs[2], 102)):
            _, sandbox = await back(ref, expected)
            await sandbox.close()
        store.verify(refs[1])
        assert sorted(path.name for path in store.libraries.path.iterdir()) == copies

        store.sweep(refs[1:], before_ns=time.time_ns(), idle=True)
        assert sorted(path.name for path in store.libraries.path.iterdir()) == copies
        opened = store.open(refs[1]).libraries
        copy = next(file.digest for _, file in opened if file.path == str(library))
        flip(store.libraries.path / copy)
        sandbox = await new_sandbox(NamespaceSandbox)
        with pytest.raises(RestoreFailed, match=r"used\.so"):
            await images.load(refs[1], sandbox, checkpoint="x")
        with pytest.raises(ImageDamaged, match=r"used\.so"):
            store.verify(refs[1])
        assert (await sandbox.request("list"))["pids"] == []
        await sandbox.close()
        store.sweep([], before_ns=time.time_ns(), idle=True)
        assert [path.name for path in store.libraries.path.iterdir()] == ["files"]

    asyncio.run(scenario())


def test_copies_of_libraries_come_after_the_image(
    engine: tuple[CriuEngine, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for them. Who loads an image that has none, or writes one, has them made."""
    images, folder = engine
    store = images._store
    go_on, copy = threading.Event(), libraries._copy

    def held_up(source: int, target: int, wanted: Callable[[], bool]) -> None:
        assert go_on.wait(60)
        copy(source, target, wanted)

    monkeypatch.setattr(libraries, "_copy", held_up)

    def copies() -> set[str]:
        found = store.libraries.path
        return {p.name for p in found.iterdir() if p.name != "files"} if found.is_dir() else set()

    async def scenario() -> None:
        sandbox = await new_sandbox(NamespaceSandbox)
        target = await start(sandbox, folder)
        frozen = await freeze(target, sandbox, folder, "first")
        refs = [(await images.write(frozen, sandbox)).ref for _ in range(2)]
        wanted = {file.digest for _, file in store.open(refs[0]).libraries}
        assert wanted and images.is_copying and not copies() & wanted
        assert store.open(refs[1]).libraries == store.open(refs[0]).libraries
        store.verify(refs[0])
        await sandbox.close()
        sandbox = await new_sandbox(NamespaceSandbox)
        loaded = await images.load(refs[0], sandbox, checkpoint="first")
        target = await wake(ForkEngine(folder, keep_ids=True), loaded)
        assert target.ask({"value": "next(half)"}) == 5
        go_on.set()
        await images.close(60)
        assert not images.is_copying and copies() == wanted

        # as after a kill in between: those of one image are made when it is loaded again
        shutil.rmtree(store.libraries.path)
        (folder / "later").mkdir()
        keys = Keys(tmp_path / "keys")
        later = CriuEngine(DumpStore(tmp_path / "store", keys), folder / "later")
        await sandbox.close()
        sandbox = await new_sandbox(NamespaceSandbox)
        loaded = await later.load(refs[0], sandbox, checkpoint="first")
        assert await later.copied(refs[0]) == "" and copies() == wanted
        shutil.rmtree(store.libraries.path)
        # or by the next that is written
        target = await wake(ForkEngine(folder, keep_ids=True), loaded)
        again = await freeze(target, sandbox, folder, "again")
        await later.write(again, sandbox)
        await later.close(60)
        assert copies() == wanted
        await sandbox.close()

    asyncio.run(scenario())


async def kill_criu(sandbox: InitClient, what: str) -> None:
    """Once it runs in that sandbox."""
    # not the process that it restores, which has its name at first
    children = Path(f"/proc/{sandbox._pid}/task/{sandbox._pid}/children")
    while True:
        for pid in children.read_text().split():
            with contextlib.suppress(OSError):  # it ends, or is another one's already
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if what.encode() in words and b"--no-default-config" in words:
                    os.kill(int(pid), signal.SIGKILL)
                    return
        await asyncio.sleep(0.001)


def test_criu_is_killed(engine: tuple[CriuEngine, Path]) -> None:
    """In the middle of a dump or a restore: nothing is stored or left, and it can be retried."""
    images, folder = engine

    async def failing(
        sandbox: InitClient, work: Callable[[], object], what: str, error: type[Exception]
    ) -> None:
        killer = asyncio.create_task(kill_criu(sandbox, what))
        with pytest.raises(error, match="signal 9"):
            await work()  # type: ignore[misc]
        await killer

    async def left(sandbox: InitClient, count: int) -> None:
        while len((await sandbox.request("list"))["pids"]) > count:
            await asyncio.sleep(0.01)

    async def scenario() -> None:
        sandbox = await new_sandbox(NamespaceSandbox)
        target = await start(sandbox, folder)
        frozen = await freeze(target, sandbox, folder, "first")
        await failing(sandbox, lambda: images.write(frozen, sandbox), "dump", CheckpointRefused)
        assert images._store.refs() == [] and images.writers == set()
        assert [p.name for p in images._store.path.iterdir()] == ["lock"]
        await left(sandbox, 2)
        assert target.ask({"value": "next(half)"}) == 5
        written = await images.write(frozen, sandbox)
        await sandbox.close()
        sandbox = await new_sandbox(NamespaceSandbox)
        load = lambda: images.load(written.ref, sandbox, checkpoint="first")  # noqa: E731
        await failing(sandbox, load, "restore", RestoreFailed)
        await left(sandbox, 0)
        target = await wake(ForkEngine(folder, keep_ids=True), await load())
        assert target.ask({"value": "next(half)"}) == 5
        await sandbox.close()

    asyncio.run(scenario())


def test_refusals(engine: tuple[CriuEngine, Path], tmp_path: Path) -> None:
    """No frozen process, a store that cannot be written, an id that is taken, no CRIU."""
    images, folder = engine

    async def scenario() -> None:
        sandbox = await new_sandbox(NamespaceSandbox)
        target = await start(sandbox, folder)
        frozen = await freeze(target, sandbox, folder, "first")
        gone = Frozen("gone", 1, str(folder / "nobody"))
        with pytest.raises(CheckpointRefused, match="could not be written"):
            await images.write(gone, sandbox)
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "criu").touch()
        full = CriuEngine(DumpStore(tmp_path / "full", Keys(tmp_path / "keys")), folder)
        with pytest.raises(CheckpointRefused, match="runs on"):
            await full.write(frozen, sandbox)
        none = CriuEngine(images._store, folder, "no-such-criu")
        with pytest.raises(CheckpointRefused, match="no program no-such-criu"):
            await none.write(frozen, sandbox)
        assert target.ask({"value": "next(half)"}) == 5
        written = await images.write(frozen, sandbox)
        # in the sandbox in which it was written the ids of the session are in use, but not its own
        loaded = await images.load(written.ref, sandbox, checkpoint="first")
        with pytest.raises(RestoreFailed, match=str(loaded.pid)):
            await images.load(written.ref, sandbox, checkpoint="first")
        await sandbox.close()

    asyncio.run(scenario())
