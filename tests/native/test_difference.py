"""Freezes that note what was written since an earlier one, in place of a clone."""

from __future__ import annotations

import native_target as tt
import pytest
from native_harness import Frozen, Process, World

SETUP = """
import ctypes, gc, hashlib, mmap, os, random, sys, threading, time
big = bytearray(random.randbytes(32 << 20))
small = [random.randbytes(random.randrange(3000)) for _ in range(20000)]
def change(seed):
    r = random.Random(seed)
    for _ in range(50):
        small[r.randrange(len(small))] = r.randbytes(r.randrange(3000))
        big[r.randrange(len(big))] = r.randrange(256)
def digest():
    gc.collect()
    assert all(isinstance(o, object) for o in gc.get_objects())
    sum = hashlib.sha256(big)
    for one in small: sum.update(one)
    return sum.hexdigest()
def warm():
    for i in range(3): change(i); digest()
warm()
"""


def based(live: Process) -> Frozen:
    """A freeze that differences can be from. What a first one needs is mapped by another; and of a
    page that the kernel moves just then, to make room for a huge one, it is not told whose it is.
    """
    for _ in range(10):
        base = live._freeze(None, {}, keeps_file=True)
        if why(live, base) == tt.WHY_NONE:
            return base
    raise AssertionError("nothing can be a base")


def test_memory_is_that_of_the_freeze(any_world: World) -> None:
    """Woken in any order, each difference is what was there, also when cells have gone on since."""
    live = any_world.start(SETUP)
    base = based(live)
    kept = []
    for step in range(20):
        live.run(f"change({step})")
        frozen = live.freeze_difference(base)
        if not frozen.facts["difference_bytes"]:
            base = frozen  # something was mapped: that one is a clone
        kept.append((frozen, live.value("digest()")))
    live.kill()
    differences = [frozen for frozen, _ in kept if frozen.base]
    assert len(differences) > 5
    assert all(f.facts["frozen_pid"] == 0 for f in differences)
    for frozen, digest in reversed(kept):
        woken = frozen.wake()
        assert woken.value("digest()") == digest
        woken.kill()


@pytest.mark.parametrize("pieces", [500, 700, 1500, 3000])
def test_memory_in_many_pieces(plain_world: World, pieces: int) -> None:
    """The kernel tells of 512 at a time, and where the rest begins not always rightly."""
    live = plain_world.start(
        "import hashlib, mmap, random\n"
        f"m = mmap.mmap(-1, {pieces} * 8192, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "m.madvise(mmap.MADV_NOHUGEPAGE)\n"
        "def write(at): m[at:at + 64] = random.randbytes(64)\n"
        "def digest():\n"
        "    sum = hashlib.sha256()\n"
        "    for at in range(0, len(m), 8192): sum.update(m[at:at + 64])\n"
        "    return sum.hexdigest()\n"
        "for at in range(0, len(m), 8192): write(at)\n"
        "digest()\n"
    )
    base = based(live)
    for _ in range(3):
        live.run("for at in range(0, len(m), 8192 * 37): write(at)")
        frozen = live.freeze_difference(base)
        assert frozen.facts["difference_why"] == tt.WHY_NONE
        digest = live.value("digest()")
        woken = frozen.wake(tt.WAKE_NEW_IDS)
        assert woken.value("digest()") == digest
        woken.kill()


def why(live: Process, base: Frozen) -> int:
    """Why the next freeze is no difference; 0 where it is one."""
    return int(live.freeze_difference(base).facts["difference_why"])


@pytest.mark.parametrize(
    "change",
    [
        "os.umask(0o27)",
        "signal.signal(signal.SIGUSR1, print)",
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
        "os.nice(3)",
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})",
        "ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)",  # PR_SET_NO_NEW_PRIVS
        "ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)",  # PR_SET_THP_DISABLE
    ],
)
def test_what_a_clone_has_from_its_maker(plain_world: World, change: str) -> None:
    """The base's processes have it as it was then: such a freeze is a clone."""
    live = plain_world.start("import ctypes, os, resource, signal\n")
    base = based(live)
    live.run(change)
    assert why(live, base) == tt.WHY_PROCESS


def test_where_files_may_be_only_so_large(plain_world: World) -> None:
    """Writing more than that would end the freeze: it is a clone."""
    live = plain_world.start("import resource\n")
    live.run("resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))")
    base = live._freeze(None, {}, keeps_file=True)
    assert why(live, base) in {tt.WHY_MUCH, tt.WHY_NO_BASE}
    frozen = live.freeze_difference(base)
    live.run("resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)")
    live.kill()
    assert frozen.wake().value("resource.getrlimit(resource.RLIMIT_FSIZE)")[0] == 1 << 20


def test_at_another_place_in_the_file(any_world: World) -> None:
    """All differences of a session are in one file."""
    live = any_world.start("x = 0\n")
    base = based(live)
    live.run("x = 1")
    first = live.freeze_difference(base, difference_at=3 << 20)
    live.run("x = 2")
    second = live.freeze_difference(base, difference_at=40 << 20)
    live.kill()
    assert first.base is base or first.facts["difference_why"] == tt.WHY_UNKNOWN
    for frozen, x in ((second, 2), (first, 1)):
        woken = frozen.wake()
        assert woken.value("x") == x
        woken.kill()


def test_mappings(plain_world: World) -> None:
    """Something new, something gone, another protection."""
    live = plain_world.start("import mmap\nm = mmap.mmap(-1, 1 << 20, flags=34); m[0] = 1\n")
    libc = "__import__('ctypes').CDLL(None)"
    address = "__import__('ctypes').addressof(__import__('ctypes').c_char.from_buffer(m))"
    live.run(f"libc, address = {libc}, {address}")
    base = based(live)
    live.run("assert libc.mprotect(__import__('ctypes').c_void_p(address), 1 << 20, 1) == 0")
    assert why(live, base) == tt.WHY_LAYOUT


def test_a_process_that_was_forked_since(any_world: World) -> None:
    """What it shares was perhaps written before: nothing can be told while it lives."""
    live = any_world.start("import os, time\n")
    base = based(live)
    live.run("child = os.fork()\nif not child: time.sleep(600)")
    assert why(live, base) == tt.WHY_SHARED
    live.run("os.kill(child, 9); os.waitpid(child, 0)")
    based(live)  # it can be told again


def test_too_much(plain_world: World) -> None:
    live = plain_world.start("big = bytearray(8 << 20)\n")
    base = based(live)
    live.run("big[:] = bytes(range(256)) * (len(big) // 256)")
    frozen = live.freeze_difference(base, difference_most=4 << 20)
    assert frozen.facts["difference_why"] in {tt.WHY_MUCH, tt.WHY_LAYOUT}


GIVEN_BACK = """
import ctypes, mmap, os
P = 4096
open("data", "wb").write(b"f" * 8 * P)
file = os.open("data", os.O_RDONLY)
memory = mmap.mmap(-1, 8 * P, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
mapped = mmap.mmap(file, 8 * P, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
for page in range(8): memory[page * P] = mapped[page * P] = ord("b")
"""


def test_pages_that_were_given_back(any_world: World) -> None:
    """MADV_DONTNEED since the base: zeros, or the file's bytes; also where they were read since."""
    live = any_world.start(GIVEN_BACK)
    base = based(live)
    live.run(
        "for m in memory, mapped:\n"
        "    m.madvise(mmap.MADV_DONTNEED, 0, 4 * P)\n"
        "    m[0], m[P], m[4 * P]\n"  # page 0 and 1 are read, 2 and 3 are not
        "    m[P] = m[5 * P] = ord('d')\n"
    )
    frozen = live.freeze_difference(base)
    assert frozen.facts["difference_why"] == tt.WHY_NONE
    live.run("for m in memory, mapped: m[:] = b'x' * len(m)")
    live.kill()
    woken = frozen.wake()
    assert woken.value("bytes(memory[i * P] for i in range(8)).decode()") == "\0d\0\0bdbb"
    assert woken.value("bytes(mapped[i * P] for i in range(8)).decode()") == "fdffbdbb"


THREADS = """
import threading, time
counts, running = [0] * 8, True
def work(i):
    while running:
        counts[i] += 1
        time.sleep(0)
threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
for t in threads: t.start()
"""


def test_threads_go_on(any_world: World) -> None:
    live = any_world.start(THREADS)
    base = based(live)
    kept = [live.freeze_difference(base) for _ in range(5)]
    live.kill()
    assert any(frozen.base for frozen in kept)
    for frozen in kept:
        woken = frozen.wake()
        before = woken.value("list(counts)")
        woken.run("time.sleep(0.5)")
        assert all(a < b for a, b in zip(before, woken.value("counts"), strict=True))
        woken.run("running = False\nfor t in threads: t.join()")
        woken.kill()


def difference(live: Process, base: Frozen) -> tuple[Frozen, Frozen]:
    """A difference, and its base: another one where something was mapped since."""
    for _ in range(10):
        frozen = live.freeze_difference(base)
        if frozen.base:
            return frozen, base
        base = frozen
    raise AssertionError(f"no difference: {base.facts['difference_why']}")


def test_made_of_a_made_one(any_world: World) -> None:
    """A process that was made of a difference takes the base's place for later differences; and it
    can be frozen again once it is woken."""
    live = any_world.start(SETUP)
    live.run("x = 'first'")
    while True:
        first, base = difference(live, based(live))
        live.run("x = 'second'")
        second = live.freeze_difference(base)
        if second.base:
            break
    live.kill()
    first.settle()
    base.quit()
    second.base = first
    woken = second.wake()
    assert woken.value("x") == "second"
    woken.run("x = 'third'")
    third, _ = difference(woken, based(woken))
    woken.kill()
    again = third.wake()
    assert again.value("x") == "third"


def test_a_file_that_is_damaged(plain_world: World) -> None:
    """The base says so, and goes on."""
    live = plain_world.start("")
    base = based(live)
    frozen = live.freeze_difference(base)
    assert frozen.base
    with open(f"/proc/self/fd/{frozen.file}", "r+b") as file:
        file.write(b"x" * 16)
    with pytest.raises(OSError, match="Bad message"):
        frozen.settle()
    assert base.ask(tt.PING).error == 0
