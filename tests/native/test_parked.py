"""A clone that another program can write down: nothing but memory, until it is passed a socket."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import native_harness
import native_target as tt
from native_harness import Frozen, Process, World

from kernel_runtime.engines import criu

STATE = """
import ctypes, mmap, os, threading, time
n = 0
def count():
    global n
    while True:
        n += 1; time.sleep(.001)
threading.Thread(target=count, daemon=True).start()
def counts():
    before = n
    return [time.sleep(.01) for _ in range(5999) if n == before] is not None and n > before
path = FOLDER + "/mapped"
with open(path, "wb") as file:
    file.write(b"from the file" + bytes(8192))
with open(path, "rb") as file:
    mapped = mmap.mmap(file.fileno(), 8192, access=mmap.ACCESS_COPY)
mapped[5000:5007] = b"written"
libc = ctypes.CDLL(None)
"""


def park(frozen: Frozen, copies: bool) -> tuple[int, int, str]:
    """Pid, flags and name of a clone that is ready. copies: whether files are mapped before."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            assert frozen.ask(tt.PARK, fds=(theirs.fileno(),)).error == 0
        ours.settimeout(native_harness.PATIENCE)
        error, pid, flags, _, highest, copied, name = criu._PARKED.unpack(ours.recv(4096))
        assert ours.recv(4096) == b""
    assert error == 0 and highest >= pid and (copied > 1 << 20) == copies
    return pid, flags, name.rstrip(b"\0").decode()


def unpark(world: World, pid: int, name: str) -> Frozen:
    """As an engine does once it was put back; this one never was away."""
    path = str(world.folder / f"parked.{world.count()}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        os.chmod(path, 0o777)
        listener.listen(8)
        with criu._meeting_point(name) as meeting:
            world.signal(pid, signal.SIGUSR1)
            uid = os.stat(f"/proc/{world.init.pid}").st_uid
            asyncio.run(criu._pass_socket(meeting, listener, pid, -1, uid))
    return Frozen(world, path, pid, {})


def held(process: Process, pid: int) -> tuple[set[str], list[str]]:
    """The files that a process has mapped, and its descriptors."""
    rows = process.value(f"open('/proc/{pid}/maps').read()").splitlines()
    files = {row.split(None, 5)[5] for row in rows if len(row.split(None, 5)) == 6}
    return {f for f in files if f[0] != "["}, process.value(f"os.listdir('/proc/{pid}/fd')")


def libraries(process: Process) -> set[str]:
    """Large files that a process has mapped to run code of them."""
    rows = process.value("open('/proc/self/maps').read()").splitlines()
    found = {row.split(None, 5)[5] for row in rows if " r-xp " in row and "/" in row}
    return {path for path in found if os.stat(path).st_size >= 256 << 10}


def test_it_holds_nothing_but_memory_and_libraries(any_world: World, folder: Path) -> None:
    live = any_world.start(f"FOLDER = {str(folder)!r}\n{STATE}")
    frozen = live.freeze()
    pid, flags, name = park(frozen, True)
    assert held(live, pid) == (libraries(live), [])
    assert len(held(live, live.pid)[0]) > len(libraries(live)) > 1
    assert flags == 0
    os.truncate(folder / "mapped", 0)  # whoever still has it mapped is killed by a look at it
    live.run("mapped = None")
    back = unpark(any_world, pid, name)
    for _ in range(2):
        woken = back.wake(tt.WAKE_NEW_IDS)
        assert woken.value("bytes(mapped[:13]).decode()") == "from the file"
        assert woken.value("bytes(mapped[5000:5007]).decode()") == "written"
        assert woken.value("counts()") and woken.value("libc.getpid() == os.getpid()")
    again, _, name = park(back, False)
    assert held(live, again) == (libraries(live), [])
    assert unpark(any_world, again, name).wake(tt.WAKE_NEW_IDS).value("counts()")
    assert live.value("counts()")
