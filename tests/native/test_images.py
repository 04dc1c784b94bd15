"""Images: a frozen process is written, everything is killed, and it goes on in another world."""

from __future__ import annotations

from pathlib import Path

import native_build
import native_target as tt
import pytest
from image_tools import Images, another, is_plain, load
from native_harness import World
from test_libraries import ARROW, ASYNCIO, DUCKDB, NUMPY, POLARS, POOL, has

from kernel_runtime.store.images import Written

STATE = """
import asyncio, mmap, os, signal, sys, threading, time
n = 0
def count():
    global n
    while True:
        n += 1; time.sleep(.001)
for i in range(3):
    threading.Thread(target=count, daemon=True).start()
def counts():
    before = n; until = time.monotonic() + 60
    while n == before and time.monotonic() < until:
        time.sleep(.002)
    return n > before
def numbers():
    for i in range(10**9): yield i
half = numbers(); [next(half) for _ in range(5)]
shared = mmap.mmap(-1, 4096); shared[:6] = b"shared"
rang = []
signal.signal(signal.SIGUSR1, lambda *a: rang.append(a[0]))
os.umask(0o27)
r, w = os.pipe(); os.write(w, b"in the pipe")
woke, begun = threading.Event(), threading.Event()
async def sleeper():
    # a loop of asyncio's is none to it once its process has a new id: the kernel puts that right
    begun.set(); await asyncio.sleep(.2); woke.set()
loop = asyncio.new_event_loop(); threading.Thread(target=loop.run_forever, daemon=True).start()
large = bytearray(os.urandom(8 << 20))
def ours():
    with open("/proc/self/stat") as f:
        stat = f.read().rpartition(")")[2].split()
    return [os.getpid(), bytes(shared[:6]).decode(), stat[23:26] + stat[42:49],
            os.readlink("/proc/self/exe"), open("/proc/self/comm").read(), os.getcwd(),
            signal.getsignal(signal.SIGUSR1) is not None, os.getpriority(os.PRIO_PROCESS, 0),
            open("/proc/self/cmdline").read(), os.sysconf("SC_OPEN_MAX"), len(large),
            hash(bytes(large))]
def umask():
    mask = os.umask(0); os.umask(mask); return mask
def grow():
    "The heap, by small blocks and by large ones; and the stack."
    keep = [bytes(1000) for _ in range(50_000)]; more = bytearray(64 << 20); more[-1] = 1
    large.extend(b"x" * (32 << 20)); del large[-(32 << 20):]
    def deep(i):
        return 0 if i == 0 else 1 + deep(i - 1)
    return [len(keep), more[-1], deep(900)]
"""
SHM = """
shm = open(f"/dev/shm/tt_image_{os.urandom(8).hex()}", "w+b"); shm.write(b"in shm"); shm.flush()
"""


@pytest.fixture
def images(tmp_path: Path) -> Images:
    return Images(tmp_path / "store")


def test_it_goes_on(any_world: World, images: Images, folder: Path) -> None:
    kind = any_world.kind
    live = any_world.start(STATE + SHM)
    live.run(f"log = open({str(folder / 'log')!r}, 'w+'); log.write('0123456789'); log.seek(4)")
    live.run("os.chdir('/usr'); task = asyncio.run_coroutine_threadsafe(sleeper(), loop)")
    assert live.value("begun.wait(60)")
    frozen = live.freeze()
    written = images.write(frozen)
    before = live.value("ours()")
    assert live.value("counts()") and live.value("woke.wait(60)")
    assert frozen.wake(tt.WAKE_COPY).value("next(half)") == 5
    live.run("os.unlink(shm.name)")
    any_world.close()
    with another(kind) as world:
        loaded = load(images, written, world)
        for turn in range(3):
            process = loaded.twin().wake(tt.WAKE_CONSUME) if turn == 2 else loaded.wake()
            assert process.woken["report"] == []
            assert process.woken["facts"]["woken_ids_kept"] == (not is_plain(world))
            now = process.value("ours()")
            skipped = {0, 3} if is_plain(world) else set()
            assert [v for i, v in enumerate(now) if i not in skipped] == [
                v for i, v in enumerate(before) if i not in skipped
            ]
            assert process.value("counts()") and process.value("woke.wait(60)")
            assert process.value("[next(half), log.tell(), log.read()]") == [5, 4, "456789"]
            assert process.value("os.read(r, 99).decode()") == "in the pipe"
            shm = "[shm.seek(0), shm.read().decode()][1]"
            assert process.value(shm) == "in shm"
            assert process.value("grow()") == [50_000, 1, 900]
            assert process.value("umask()") == 0o27
            process.run("signal.raise_signal(signal.SIGUSR1)")
            assert process.value("rang") == [10]
            process.run("print('said', flush=True)")
            assert process.output() == "said\n"
            process.run("os.unlink(shm.name)")
            process.kill()
        assert loaded.wake(tt.WAKE_COPY).value("next(half)") == 5
        loaded.quit()


def test_ten_in_a_row(world: World, images: Images) -> None:
    """Each image is of the process that was loaded from the one before."""
    kind = world.kind
    process = world.start(STATE)
    pid = process.pid
    written: Written | None = None
    worlds = [world]
    for turn in range(10):
        process.run("large[turn << 12] = 1" if turn else "turn = 0")
        assert process.value("next(half)") == 5 + turn
        frozen = process.freeze()
        written = images.write(frozen, written)
        if turn:
            assert written.stored_bytes < 6 << 20
        worlds.pop().close()
        worlds.append(World(kind, native_build.built_library(), native_build.built_states()))
        loaded = load(images, written, worlds[-1])
        process = loaded.wake()
        assert process.woken["result"] == 1
        assert process.value("[os.getpid(), sum(large[i << 12] == 1 for i in range(turn + 1))]")
        assert process.value("counts() and os.getpid()") == pid
        process.run("turn += 1")
    worlds.pop().close()


LIBRARIES = {
    "polars": (POLARS, [714264285, 9]),
    "duckdb": (DUCKDB, [100, 124999750000]),
    "pyarrow": (ARROW, [50, 44999850000]),
    "numpy": (NUMPY, [343000000.0, 700.0]),
    "": (POOL, [9, 49, True, True]),
    "asyncio": (ASYNCIO, 4),
}


@pytest.mark.libraries
@pytest.mark.parametrize("name", LIBRARIES)
def test_libraries(world: World, images: Images, name: str) -> None:
    """Pools of threads, asleep in the kernel or in user code."""
    has(*filter(None, [name]))
    setup, expected = LIBRARIES[name]
    live = world.start(setup)
    if name:
        assert live.value("job()") == expected
    frozen = live.freeze()
    written = images.write(frozen)
    kind = world.kind
    world.close()
    with another(kind) as other:
        loaded = load(images, written, other)
        for _ in range(2):
            woken = loaded.wake()
            assert woken.value("job()") == expected
            woken.kill()


def test_what_is_stored(world: World, images: Images) -> None:
    """Nothing twice from one image to the next, wherever it lies; and it stays in one piece."""
    live = world.start(
        "import os\nones = bytearray(b'1') * (16 << 20); data = os.urandom(8 << 20)\n"
    )
    first = images.write(live.freeze())
    live.run("ones[5 << 20] = 0; copy = bytearray(data); more = bytearray(b'1') * (8 << 20)")
    second = images.write(live.freeze(), first)
    assert second.bytes > first.bytes + (16 << 20) - (1 << 16)
    assert second.stored_bytes < 18 << 20  # a block at an odd place is another one
    third = images.write(live.freeze(), second)
    assert third.stored_bytes < 2 << 20
    with images.store.open(third.ref) as image:
        runs = image.parsed().runs
        assert sum(run.size for run in runs if run.lazy) > 20 << 20
        assert all(run.size >= 256 << 10 for run in runs if run.lazy) and len(runs) < 5000
    world.kill(live.pid)
    woken = load(images, third, world).wake()
    assert woken.value("[ones.count(b'1'), copy == data, more.count(b'1')]") == [
        (16 << 20) - 1, True, 8 << 20
    ]  # fmt: skip


def test_other_frozen_processes(world: World, images: Images) -> None:
    """One that was moved, a twin, and one whose copies run meanwhile."""
    kind = world.kind
    live = world.start(STATE)
    frozen = live.freeze()
    refs = [images.write(frozen.twin())]
    copy = frozen.wake(tt.WAKE_COPY)
    moved = live.freeze(flags=tt.MOVE)
    moved.ask(tt.PING)
    refs.append(images.write(moved, refs[0]))
    woken = moved.wake()
    refs.append(images.write(moved, refs[1]))
    assert woken.value("counts()") and copy.value("next(half)") == 5
    world.close()
    for written in refs:
        with another(kind) as other:
            loaded = load(images, written, other)
            woken = loaded.wake(tt.WAKE_CONSUME)
            assert woken.value("counts()") and woken.value("next(half)") == 5
            assert woken.freeze(flags=tt.MOVE).wake().value("next(half)") == 6


def test_what_a_program_gets_anew(any_world: World, images: Images) -> None:
    """Arm: the keys that sign return addresses, and the length of vectors, in each thread."""
    kind = any_world.kind
    live = any_world.start(
        STATE + "import ctypes; states = ctypes.CDLL(os.environ['TT_STATES'])\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "states.state_signed.restype = ctypes.c_uint64\n"
        "def machine(): return [states.state_signed(0), states.state_signed(1),"
        " states.state_vectors()]\n"
        "states.state_other_vectors(); pool = ThreadPoolExecutor(1)\n"
        "def everywhere(): return [machine(), pool.submit(machine).result(60)]\n"
    )
    before = live.value("everywhere()")
    frozen = live.freeze()
    written = images.write(frozen)
    assert frozen.wake(tt.WAKE_NEW_IDS).value("everywhere()") == before
    any_world.close()
    with another(kind) as world:
        loaded = load(images, written, world)
        for _ in range(2):
            woken = loaded.wake()
            assert woken.value("everywhere()") == before and woken.value("counts()")
            woken.kill()
