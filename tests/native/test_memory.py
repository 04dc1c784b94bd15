"""Memory that a clone does not copy: shared mappings, and regions marked not to be copied."""

from __future__ import annotations

import pathlib
import time

import native_target as tt
import pytest
from native_harness import World

from tests.older_kernel import BEFORE_6_11

SETUP = """
import ctypes, mmap, os, struct, sys, time
from multiprocessing import shared_memory
def maps():
    return open("/proc/self/maps").read()
"""


UNDUMPABLE = "assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0\n"
"""Nobody else may look into /proc/PID of such a process, not even a clone of it."""

on_kernels = pytest.mark.parametrize("kernel", ["", BEFORE_6_11], ids=["as it is", "before 6.11"])


@on_kernels
def test_process_07(any_world: World, kernel: str) -> None:
    """np.memmap, anonymous mmap and shared_memory, each with its values of the freeze."""
    setup = """
open("mm.dat", "wb").write(struct.pack("4q", 0, 1, 2, 3))
file = open("mm.dat", "r+b"); m = mmap.mmap(file.fileno(), 32)
an = mmap.mmap(-1, 16); an[:2] = b"ab"
s = shared_memory.SharedMemory(create=True, size=8); s.buf[0] = 7
"""
    live = any_world.start(SETUP + kernel + setup)
    frozen = live.freeze()
    live.run("m[:8] = b'changed!'; m.flush(); an[:2] = b'zz'; s.buf[0] = 200")
    segment = pathlib.Path("/dev/shm", live.value("s.name.strip('/')"))
    live.kill()
    # the resource tracker of multiprocessing, a child of the live process, removes the segment
    until = time.monotonic() + 60
    while segment.exists() and time.monotonic() < until:
        time.sleep(0.01)
    for again in range(2):
        # the filesystem's part of a restore: another inode, with the old bytes
        (any_world.folder / "mm.dat").unlink()
        (any_world.folder / "mm.dat").write_bytes(bytes([0] * 8 + [1] + [0] * 23))
        (any_world.folder / "mm.dat").chmod(0o666)
        woken = frozen.wake()
        assert woken.woken["report"] == []
        assert woken.value("[m[8], an[:2].decode(), s.buf[0]]") == [1, "ab", 7]
        woken.run("m[0] = 5; m.flush(); an[0] = 0; s.buf[0] = 1")
        assert (any_world.folder / "mm.dat").read_bytes()[0] == 5
        assert woken.value("open('/dev/shm/' + s.name.strip('/'), 'rb').read(1)[0]") == 1
        if not again:
            woken.run("os.unlink('/dev/shm/' + s.name.strip('/'))")
        else:
            woken.run("s.unlink()")
        woken.kill()


@on_kernels
def test_one_object_behind_several_mappings(any_world: World, kernel: str) -> None:
    setup = """
fd = os.memfd_create("two"); os.ftruncate(fd, 1 << 20)
a = mmap.mmap(fd, 1 << 20); b = mmap.mmap(fd, 4096, offset=8192); os.close(fd)
c = mmap.mmap(-1, 1 << 20); c[500000:500003] = b"far"
a[8192:8195] = b"one"
libc = ctypes.CDLL(None)
address = ctypes.addressof(ctypes.c_char.from_buffer(c))
libc.mprotect(ctypes.c_void_p(address + 4096), 4096, 1)
libc.mremap.restype = ctypes.c_void_p
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
second = libc.mremap(address, 0, 4096, 1)
ctypes.memset(second, 65, 1)
shape = [line.split()[:2] for line in maps().splitlines() if "zero (del" in line or "memfd" in line]
"""
    live = any_world.start(SETUP + kernel + setup)
    frozen = live.freeze()
    live.run("a[8192:8195] = b'two'; c[500000:500003] = b'not'; c[0] = 0")
    live.kill()
    for _ in range(2):
        woken = frozen.wake()
        assert woken.woken["report"] == []
        assert woken.value("[b[:3].decode(), c[500000:500003].decode(), c[0]]") == [
            "one",
            "far",
            65,
        ]
        woken.run("b[0:1] = b'X'; ctypes.memset(second, 66, 1)")
        assert woken.value("[a[8192:8195].decode(), c[0]]") == ["Xne", 66]
        assert woken.value(
            "shape == [line.split()[:2] for line in maps().splitlines()"
            " if 'zero (del' in line or 'memfd' in line]"
        )
        woken.kill()


def test_sparse_shared_memory_is_not_filled(world: World) -> None:
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    swap = dict(line.split()[:2] for line in lines if line.startswith("Swap"))
    if swap["SwapTotal:"] != swap["SwapFree:"]:
        pytest.skip("needs a machine that has not swapped")
    live = world.start(SETUP + "big = mmap.mmap(-1, 8 << 30); big[1 << 32] = 9\n")
    frozen = live.freeze()
    assert frozen.facts["aside_bytes"] < 100000
    live.kill()
    woken = frozen.wake()
    assert woken.value("[big[1 << 32], big[0], len(big)]") == [9, 0, 8 << 30]


def test_too_large_is_left_out_and_named(world: World) -> None:
    live = world.start(SETUP + "big = mmap.mmap(-1, 1 << 20); big[:] = b'x' * (1 << 20)\n")
    frozen = live.freeze(aside_limit=1 << 16)
    assert [line[0] for line in frozen.report] == ["memory"]
    live.kill()
    assert frozen.wake().value("len(big)") == 1 << 20


def test_frozen_pins_no_shared_file(world: World) -> None:
    live = world.start(
        SETUP
        + "open('x', 'wb').write(b'y' * 4096); f = open('x', 'r+b'); m = mmap.mmap(f.fileno(), 0)\n"
        "an = mmap.mmap(-1, 4096)\n"
    )
    frozen = live.freeze()
    assert frozen.ask(tt.PING).error == 0
    shared = (
        f"[l for l in open('/proc/{frozen.facts['frozen_pid']}/maps') if l.split()[1][3] == 's']"
    )
    assert live.value(shared) == []


@pytest.mark.parametrize(
    "kernel", ["", BEFORE_6_11, UNDUMPABLE], ids=["as it is", "before 6.11", "undumpable"]
)
def test_memory_not_copied_by_fork_is_zero_and_named(world: World, kernel: str) -> None:
    setup = """
libc = ctypes.CDLL(None)
m = mmap.mmap(-1, 65536, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
m[:4] = b"kept"; m.madvise(mmap.MADV_DONTFORK)
"""
    live = world.start(SETUP + kernel + setup)
    frozen = live.freeze()
    live.kill()
    woken = frozen.wake()
    assert [line[0] for line in woken.woken["report"]] == ["memory"]
    assert "MADV_DONTFORK" in woken.woken["report"][0][2]
    assert woken.value("m[:4] == bytes(4)")


LOCKED = """
import resource
m = mmap.mmap(-1, 65536, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
s = mmap.mmap(-1, 65536); s[:6] = b"shared"
libc = ctypes.CDLL(None)
for one in m, s:
    assert libc.mlock(ctypes.byref(ctypes.c_char.from_buffer(one), 4096), 8192) == 0
def cap_effective():
    return next(line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff"))
def locked():
    return [line for line in open("/proc/self/status") if line.startswith("VmLck")]
"""


def test_locked_memory_is_locked_again(any_world: World) -> None:
    live = any_world.start(SETUP + LOCKED)
    frozen = live.freeze()
    assert frozen.report == []
    live.run("libc.munlockall()")
    live.kill()
    for _ in range(2):
        woken = frozen.wake()
        assert woken.woken["report"] == []
        assert woken.value("[locked(), s[:6].decode()]") == [["VmLck:\t      16 kB\n"], "shared"]
        woken.kill()


def test_memory_that_may_not_be_locked_again_is_named(any_world: World) -> None:
    live = any_world.start(SETUP + LOCKED)
    live.run("resource.setrlimit(resource.RLIMIT_MEMLOCK, (8192, 8192))")
    frozen = live.freeze()
    live.kill()
    woken = frozen.wake()
    if woken.value("int(cap_effective(), 16) >> 14 & 1"):  # CAP_IPC_LOCK: no limit
        assert woken.woken["report"] == []
        return
    (line,) = woken.woken["report"]
    assert line[0] == "memory" and "mlock" in line[2], line
    assert woken.value("locked()") == ["VmLck:\t       8 kB\n"]


@on_kernels
def test_pages_that_were_written_are_noted(world: World, kernel: str) -> None:
    setup = """
m = mmap.mmap(-1, 4 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
m.madvise(mmap.MADV_NOHUGEPAGE)
def write(n):
    for i in range(0, n, 4096): m[i] = (m[i] + 1) % 256
write(4 << 20)
"""
    live = world.start(SETUP + kernel + setup + "from native_target import load; native = load()\n")
    live.freeze()
    live.run("write(2 << 20)")
    noted = live.value("native.tt_pages_note(1 << 30, 100_000)")
    assert 512 <= noted < 50_000
    few = live.value("native.tt_pages_note(1 << 20, 100_000)")  # smaller mappings than m only
    assert few <= noted - 512
    live.value("native.tt_pages_note(1 << 30, 100_000)")
    live.freeze()
    assert live.value("native.tt_pages_touch(-1)") >= 512


@on_kernels
def test_unshare_of_what_was_rewritten(world: World, kernel: str) -> None:
    live = world.start(
        SETUP + kernel + "m = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "m.madvise(mmap.MADV_NOHUGEPAGE)\n"
        "def write(n):\n  for i in range(0, n, 4096): m[i] = (m[i] + 1) % 256\n"
        "write(64 << 20)\n"
    )
    first = live.freeze(hot_min=32 << 20)
    assert first.facts["hot_bytes"] >= 64 << 20  # nothing was shared before
    live.run("write(16 << 20)")
    second = live.freeze(hot_min=32 << 20)
    assert 16 << 20 <= second.facts["hot_bytes"] <= 20 << 20
    assert first.facts["rewritten_bytes"] == 0
    assert 16 << 20 <= second.facts["rewritten_bytes"] <= second.facts["hot_bytes"]
    made_own = second.ask(tt.UNSHARE, arg64=4 << 20)
    assert made_own.error == 0 and made_own.bytes == 4 << 20
    twin = second.twin()  # shares all with it once more, which is none of the live one's
    made_own = second.ask(tt.UNSHARE, arg64=1 << 30)
    assert made_own.error == 0 and 11 << 20 <= made_own.bytes <= 16 << 20
    assert second.ask(tt.UNSHARE, arg64=1 << 30).bytes == 0
    twin.quit()
    third = live.freeze(hot_min=32 << 20)
    assert third.facts["hot_bytes"] <= 4 << 20  # nobody shares it with the live one, but unwritten
    assert third.ask(tt.UNSHARE, arg64=1 << 20).bytes <= 1 << 20
    live.kill()
    woken = second.wake()
    assert woken.value("[m[0], m[(16 << 20) - 4096], m[32 << 20]]") == [2, 2, 1]


def test_unwritten_memory_of_a_frozen_process_that_is_gone(any_world: World) -> None:
    live = any_world.start(
        "import mmap, os\nm = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "def write(n):\n  for i in range(0, n, 4096): m[i] = (m[i] + 1) % 256\n"
        "write(64 << 20)\n"
    )
    some = 32 << 20
    for written, least, most, again in (
        *((0, 64, 68, 0), (0, 0, 4, 0), (some, 32, 36, 0), (some, 32, 36, 32), (0, 0, 4, 0)),
    ):
        live.run(f"write({written})")
        frozen = live.freeze(clone=True, hot_min=32 << 20)
        assert least << 20 <= frozen.facts["hot_bytes"] <= most << 20
        assert again << 20 <= frozen.facts["rewritten_bytes"] <= (again + 4) << 20
        frozen.quit()
        live.run(f"while os.path.exists('/proc/{frozen.facts['frozen_pid']}'): pass")


@pytest.mark.parametrize("flags", [0, tt.MOVE])
def test_private_memory_is_as_it_was(any_world: World, flags: int) -> None:
    live = any_world.start(
        SETUP + "data = os.urandom(8 << 20); import zlib; sum = zlib.crc32(data)\n"
    )
    frozen = live.freeze(flags=flags)
    if flags:
        frozen.ask(tt.PING)
    live.kill()
    for _ in range(2):
        woken = frozen.wake()
        assert woken.value("zlib.crc32(data) == sum")
        woken.kill()


def test_a_twin_is_ready_for_what_is_written_by_now(any_world: World) -> None:
    live = any_world.start(
        "import ctypes, mmap, resource\n"
        "private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS\n"
        "early, late = (mmap.mmap(-1, 2 << 20, private) for _ in range(2))\n"
        "def write(block):\n"
        "  for i in range(0, len(block), 4096): block[i] ^= 1\n"
        "def faults(block):\n"
        "  before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "  write(block)\n"
        "  return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "def note():\n"
        "  most = ctypes.c_uint64(16 << 20), ctypes.c_uint32(8192)\n"
        "  return target.library.tt_pages_note(*most)\n"
        "write(late)\n"
    )
    live.freeze()  # from here on its pages are shared
    live.run("write(early)")
    assert live.value("note()") >= 512
    frozen = live.freeze()
    live.run("write(late)")
    both = "[faults(early), faults(late)]"
    woken = frozen.twin(live.pid).wake(tt.WAKE_NEW_IDS | tt.WAKE_CONSUME)
    assert max(woken.value(both)) < 100
    for other in (0, 1, 1 << 22):  # none, not one of its kind, nobody
        early, late = frozen.twin(other).wake(tt.WAKE_NEW_IDS | tt.WAKE_CONSUME).value(both)
        assert early < 100
        assert late >= 512
    live.run("write(late)")  # goes on
