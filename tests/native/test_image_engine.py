"""The engine as a supervisor uses it, in real sandboxes: written, all killed, loaded, woken."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import native_harness
import pytest
from native_build import built_library, built_loader, built_states, need

from kernel_runtime.engines import image as image_module
from kernel_runtime.engines.base import Frozen
from kernel_runtime.engines.fork import ForkEngine, listen_at
from kernel_runtime.engines.image import ImageEngine
from kernel_runtime.engines.loaded import MONOTONIC
from kernel_runtime.errors import CheckpointRefused, RestoreFailed, SandboxError
from kernel_runtime.sandbox.base import InitClient
from kernel_runtime.sandbox.namespaces import NamespaceSandbox
from kernel_runtime.sandbox.none import NoSandbox
from kernel_runtime.store.images import PAGE_FILE, ImageStore
from kernel_runtime.store.keys import Keys

SETUP = """
import asyncio, os, sys, threading, time
n = 0
def count():
    global n
    while True:
        n += 1; time.sleep(.001)
threading.Thread(target=count, daemon=True).start()
def numbers():
    for i in range(10**9): yield i
half = numbers(); [next(half) for _ in range(5)]
done = []
async def sleeper():
    await asyncio.sleep(.5); done.append("slept")
loop = asyncio.new_event_loop(); threading.Thread(target=loop.run_forever, daemon=True).start()
task = asyncio.run_coroutine_threadsafe(sleeper(), loop)
import native_target; native_target.serve(globals())
"""


class Target:
    """A target in a sandbox, by its link; the standard streams are of no interest here."""

    def __init__(self) -> None:
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        null = os.open(os.devnull, os.O_RDWR)
        self.fds = [theirs.detach(), null, os.dup(null)]

    def given(self) -> None:
        """The other process has them now."""
        while self.fds:
            os.close(self.fds.pop())

    def ask(self, request: dict[str, Any], fds: list[int] | None = None) -> Any:
        socket.send_fds(self.link, [json.dumps(request).encode()], fds or [])
        return self.reply()

    def reply(self) -> Any:
        reply = native_harness.receive(self.link)
        assert "ok" in reply, reply
        return reply["ok"]


async def start(sandbox: InitClient, folder: Path) -> Target:
    program = folder / "target.py"
    program.write_text(SETUP)
    target = Target()
    environment = {
        "TT_LIBRARY": str(built_library()),
        "TT_STATES": str(built_states()),
        "PYTHONPATH": str(native_harness.HERE),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    argv = [sys.executable, str(program)]
    await sandbox.spawn(argv, environment, "/", dict(zip((3, 1, 2), target.fds)))
    target.given()
    assert target.ask({"value": "n >= 0"})
    return target


async def freeze(target: Target, sandbox: InitClient, folder: Path, name: str) -> Frozen:
    listener, address = listen_at(folder / name)
    supervisor = 0 if sandbox.ids_kept else os.getpid()
    with listener:
        made = target.ask({"freeze": {"supervisor_pid": supervisor}}, [listener.fileno()])
    return Frozen(name, made["facts"]["frozen_pid"], address)


async def wake(engine: ForkEngine, frozen: Frozen) -> Target:
    target = Target()
    await engine.wake(frozen, target.fds)
    target.given()
    target.reply()
    return target


async def new_sandbox(kind: type[InitClient]) -> InitClient:
    sandbox = kind(lambda pid, status: None, lambda: None)
    try:
        await sandbox.start()
    except SandboxError as error:
        need(f"namespaces ({error})")
    return sandbox


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ImageEngine, Path]]:
    monkeypatch.setattr(image_module, "LOADER", built_loader())
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        store = ImageStore(tmp_path / "store", Keys(tmp_path / "keys"))
        yield ImageEngine(store, Path(folder)), Path(folder)


@pytest.mark.parametrize("kind", [NamespaceSandbox, NoSandbox])
def test_goes_on_in_another_sandbox(
    kind: type[InitClient], engine: tuple[ImageEngine, Path]
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
            written = await images.write(frozen, sandbox, base=written.ref)
            assert written.stored_bytes < written.bytes / 2
            await fork.drop(loaded)
        await sandbox.close()

    asyncio.run(scenario())


def test_a_clock_that_is_behind(engine: tuple[ImageEngine, Path]) -> None:
    """After a reboot, where the sandbox's clock was not put ahead."""
    images, folder = engine

    async def scenario() -> None:
        sandbox = await new_sandbox(NamespaceSandbox)
        frozen = await freeze(await start(sandbox, folder), sandbox, folder, "first")
        later = {MONOTONIC: time.monotonic_ns() + 3600 * 10**9}
        written = await images.write(frozen, sandbox, details=later)
        loaded = await images.load(written.ref, sandbox, checkpoint="first")
        assert [note.kind for note in loaded.not_captured] == ["clock"]
        await sandbox.close()

    asyncio.run(scenario())


def test_refusals(engine: tuple[ImageEngine, Path]) -> None:
    """The errors that a supervisor is told, and that nothing is left of a failed load."""
    images, folder = engine

    async def scenario() -> None:
        sandbox = await new_sandbox(NamespaceSandbox)
        target = await start(sandbox, folder)
        frozen = await freeze(target, sandbox, folder, "first")
        written = await images.write(frozen, sandbox)
        writing = asyncio.create_task(images.write(frozen, sandbox))
        for _ in range(5):  # it has begun, and cannot be done: what it asks for takes longer
            await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        gone = Frozen("gone", 1, str(folder / "nobody"))
        with pytest.raises(CheckpointRefused, match="could not be written"):
            await images.write(gone, sandbox)
        page_file = images._store.path / written.ref / PAGE_FILE
        page_file.rename(folder / "kept")
        with pytest.raises(RestoreFailed, match=PAGE_FILE):
            await images.load(written.ref, sandbox, checkpoint="first")
        (folder / "kept").rename(page_file)
        with with_loader("/bin/true"), pytest.raises(RestoreFailed, match="answer"):
            await images.load(written.ref, sandbox, checkpoint="first")
        with with_loader("/nowhere"), pytest.raises(RestoreFailed, match="nowhere"):
            await images.load(written.ref, sandbox, checkpoint="first")
        # target and frozen process are left, once the others have been reaped
        while len((await sandbox.request("list"))["pids"]) > 2:
            await asyncio.sleep(0.01)
        assert sorted(p.name for p in folder.iterdir()) == ["first", "target.py"]
        assert target.ask({"value": "next(half)"}) == 5
        await sandbox.close()

    asyncio.run(scenario())


MAPPED = """
found = [line.split()[0] for line in open("/proc/self/maps") if ".ttpages" in line]
places = ["-".join(v.lstrip("0") for v in place.split("-")) for place in found]
errors = []
for place in places:
    try:
        os.close(os.open(f"/proc/self/map_files/{place}", os.O_RDWR)); errors.append("opened")
    except OSError as error:
        errors.append(error.strerror)
"""


@pytest.mark.parametrize("has_mounts", [True, False])
def test_page_files_are_out_of_reach(
    engine: tuple[ImageEngine, Path], has_mounts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs cells cannot write to what is mapped, root neither; else nothing is mapped."""
    images, folder = engine

    def refuse(fd: int) -> None:
        raise OSError(38, "no such call")

    if not has_mounts:
        monkeypatch.setattr(image_module.linux, "make_read_only", refuse)

    async def scenario() -> None:
        sandbox = await new_sandbox(NamespaceSandbox)
        target = await start(sandbox, folder)
        target.ask({"run": "block = bytearray(os.urandom(8 << 20)); total = sum(block)"})
        frozen = await freeze(target, sandbox, folder, "first")
        written = await images.write(frozen, sandbox)
        await sandbox.close()
        sandbox = await new_sandbox(NamespaceSandbox)
        loaded = await images.load(written.ref, sandbox, checkpoint="first")
        target = await wake(ForkEngine(folder, keep_ids=True), loaded)
        target.ask({"run": MAPPED})
        errors = target.ask({"value": "errors"})
        if os.geteuid() == 0:
            assert set(errors) == ({"Read-only file system"} if has_mounts else set())
        else:
            assert set(errors) == {"Operation not permitted"}
        assert target.ask({"value": "sum(block) == total"})
        await sandbox.close()

    asyncio.run(scenario())


@contextmanager
def with_loader(path: str) -> Iterator[None]:
    before, image_module.LOADER = image_module.LOADER, Path(path)
    try:
        yield
    finally:
        image_module.LOADER = before
