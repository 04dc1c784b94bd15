"""Huge pages that a fork has broken up are made whole again (native/huge.c)."""

from __future__ import annotations

import errno
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import native_target as tt
import pytest
from native_harness import World

from tests.waiting import until

SETUP = """
import ctypes, mmap, os, time
from native_target import load
native = load()
UNIT = 2 << 20
m = mmap.mmap(-1, 17 * UNIT, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # 16 that are aligned, or 17
address = ctypes.addressof(ctypes.c_char.from_buffer(m))
first = -(-address // UNIT) * UNIT
m.madvise(mmap.MADV_HUGEPAGE)
def write(units, value):
    for i in range(first, first + units * UNIT, 4096): m[i - address] = value
def huge():
    inside = False
    for line in open("/proc/self/smaps"):
        start = line.partition(" ")[0]
        if "-" in start:
            low, _, high = start.partition("-")
            inside = int(low, 16) <= first < int(high, 16)
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1]) // 2048
def regain(least=8 << 20, seconds=60, watched=-1):
    at, made = ctypes.c_uint64(), ctypes.c_uint32()
    until = ctypes.c_uint64(time.monotonic_ns() + int(seconds * 1e9))
    done = native.tt_huge_regain(
        ctypes.c_uint64(least), ctypes.byref(at), until, watched, ctypes.byref(made))
    return [done, made.value]
"""


@pytest.fixture
def live(any_world: World, ability: Callable[[str, bool], None]) -> Any:
    release = tuple(int(part) for part in platform.release().split(".")[:2])
    ability("Linux 6.11", release >= (6, 11))
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    ability("huge pages", enabled.exists() and "[never]" not in enabled.read_text())
    live = any_world.start(SETUP)
    live.run("m[:] = bytes(len(m))")
    made_whole(live)
    return live


def made_whole(live: Any) -> int:
    """Until 16 units are huge; how many were made. Memory may be fragmented for a moment, and the
    kernel's own khugepaged may have been faster with some."""
    end = time.monotonic() + 60
    count = 0
    while live.value("huge()") < 16:
        done, made = live.value("regain()")
        assert done in (0, -errno.ENOMEM, -errno.EAGAIN) and time.monotonic() < end
        count += made
    return count


def test_what_a_fork_has_broken_up(live: Any) -> None:
    frozen = live.freeze()
    live.run("write(8, 1)")
    assert live.value("huge()") < 16
    assert made_whole(live)
    assert live.value("regain()") == [0, 0]
    assert live.value("[m[first - address], m[first - address + 8 * UNIT]]") == [1, 0]
    live.kill()
    woken = frozen.wake()
    assert woken.value("bytes(m).count(0) == len(m)")


def test_what_is_shared_is_not_copied(live: Any) -> None:
    live.freeze(clone=True)
    live.run("write(16, 1)")
    frozen = live.freeze(clone=True, hot_min=8 << 20)
    assert live.value("huge()") < 16
    assert live.value("regain()") == [0, 0]
    assert frozen.ask(tt.UNSHARE, arg64=1 << 30).bytes >= 8 * (2 << 20)
    # a page that the kernel moves elsewhere at that moment is left out
    until(lambda: frozen.ask(tt.UNSHARE, arg64=1 << 30).bytes == 0)
    assert made_whole(live)
    live.run("write(16, 2)")
    assert live.value("huge()") >= 16, "a write has broken up what was shared with nobody"
    live.kill()
    woken = frozen.wake()
    assert woken.value("m[first - address], m[first - address + 15 * UNIT]") == [1, 1]


def test_it_ends_when_it_shall(live: Any) -> None:
    live.freeze()
    live.run("write(16, 1)\nr, w = os.pipe(); os.write(w, b'x')")
    assert live.value("regain(watched=r)") == [1, 0]
    assert live.value("regain(seconds=0)") == [1, 0]
    assert live.value("regain(least=1 << 40)") == [0, 0]
    live.run("m.madvise(mmap.MADV_NOHUGEPAGE)")
    assert live.value("regain()") == [0, 0]
    live.run("m.madvise(mmap.MADV_HUGEPAGE)")
    assert made_whole(live)


def test_what_is_unshared_is_copied_into_huge_pages(live: Any) -> None:
    """Where the kernel has some at hand; else they are small, as without."""
    live.run(
        "def of(pid, what):\n"
        "    text = open(f'/proc/{pid}/smaps_rollup').read()\n"
        "    return next(int(l.split()[1]) for l in text.splitlines() if l.startswith(what))\n"
        "def is_there(pid, at):\n"
        "    with open(f'/proc/{pid}/pagemap', 'rb') as f:\n"
        "        f.seek(at // 4096 * 8)\n"
        "        return f.read(8)[7] >> 7\n"
    )
    huge = 0
    end = time.monotonic() + 60
    while not huge and time.monotonic() < end:
        made_whole(live)
        value = live.value("(m[first - address] + 1) % 256")
        live.run(f"write(16, {value})")
        hole = "first + 15 * UNIT + 4096"  # not touched: the unit is not filled up
        live.run(f"m.madvise(mmap.MADV_DONTNEED, {hole} - address, 4096)")
        frozen = live.freeze(clone=True, hot_min=8 << 20)
        pid = frozen.facts["frozen_pid"]
        some = frozen.ask(tt.UNSHARE, arg64=3 << 20)  # a whole unit, and a half
        assert some.error == 0 and some.bytes == 3 << 20
        rest = frozen.ask(tt.UNSHARE, arg64=1 << 30)
        assert 10 * (2 << 20) <= some.bytes + rest.bytes <= 17 * (2 << 20)
        until(lambda: frozen.ask(tt.UNSHARE, arg64=1 << 30).bytes == 0)  # noqa: B023
        huge = live.value(f"of({pid}, 'AnonHugePages:')")
        assert live.value(f"is_there({pid}, {hole} - 4096), is_there({pid}, {hole})") == [1, 0]
        live.run(f"write(15, {value + 1})")  # which the frozen process does not see
        woken = frozen.wake()
        assert woken.value("[m[first - address + i * UNIT] for i in range(16)]") == [value] * 16
        woken.kill()
        frozen.quit()
    assert huge >= 2048
