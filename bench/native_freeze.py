"""How long a freeze and a wake take, against a bare clone of the same process.

    python bench/native_freeze.py [SIZE_MIB ...]

For each size, with 4 KiB pages and with huge pages (madvise): the pause of a freeze next to a raw
clone(2) of the same process, waking a copy, waking a twin (the frozen clone made ahead of time
turns into the live process), and moving (the live process becomes the frozen one). Then what the
next cell pays that rewrites the memory, with and without TT_UNSHARE. Medians in ms.
Runs in a user and pid namespace, as an executor does. Needs cc.
"""

from __future__ import annotations

import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "native"))

import native_build  # noqa: E402
import native_target as tt  # noqa: E402
from native_harness import World  # noqa: E402

ROUNDS = 9
BARE = """
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
uint64_t bare_clone_ns(void) {
  struct timespec a, b;
  clock_gettime(CLOCK_MONOTONIC, &a);
  long pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (pid == 0) syscall(SYS_exit_group, 0);
  clock_gettime(CLOCK_MONOTONIC, &b);
  waitpid(pid, 0, 0);
  return (b.tv_sec - a.tv_sec) * 1000000000ull + b.tv_nsec - a.tv_nsec;
}
"""
SETUP = """
import ctypes, mmap, threading, time
bare = ctypes.CDLL({bare!r}).bare_clone_ns
bare.restype = ctypes.c_uint64
data = mmap.mmap(-1, {size} + (2 << 20), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
data.madvise({advice})
step = b"x" * (1 << 20)
for i in range(0, {size}, 1 << 20):
    data[i:i + (1 << 20)] = step
for _ in range(8):
    threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
"""


def median_ms(values: list[int]) -> float:
    return statistics.median(values) / 1e6


def measure(world: World, bare: pathlib.Path, mib: int, huge: bool) -> dict[str, float]:
    """One row of the table."""
    advice = "mmap.MADV_HUGEPAGE" if huge else "mmap.MADV_NOHUGEPAGE"
    live = world.start(SETUP.format(bare=str(bare), size=mib << 20, advice=advice))
    live.value("1")
    clones = [int(live.value("bare()")) for _ in range(ROUNDS)]
    pauses, parts = [], []
    for _ in range(ROUNDS):
        frozen = live.freeze()
        pauses.append(frozen.facts["pause_ns"])
        parts.append(frozen.facts["stop_ns"] + frozen.facts["describe_ns"])
        frozen.quit()
    frozen = live.freeze()
    live.kill()
    wakes, twins, moves = [], [], []
    for _ in range(ROUNDS):
        woken = frozen.wake()
        wakes.append(woken.woken["facts"]["pause_ns"])
        woken.kill()
        twin = frozen.twin()
        woken = twin.wake(tt.WAKE_CONSUME)
        twins.append(woken.woken["facts"]["pause_ns"])
        started = time.monotonic_ns()
        moved = woken.freeze(flags=tt.MOVE)
        moved.ask(tt.PING)
        moves.append(time.monotonic_ns() - started)
        woken.kill()
        moved.quit()
    frozen.quit()
    return {
        "bare clone": median_ms(clones),
        "pause": median_ms(pauses),
        "stop+describe": median_ms(parts),
        "pause/bare": median_ms(pauses) / median_ms(clones),
        "wake copy": median_ms(wakes),
        "wake twin": median_ms(twins),
        "move": median_ms(moves),
    }


def measure_rewrite(world: World, bare: pathlib.Path, mib: int, huge: bool) -> dict[str, float]:
    """What the next cell pays that rewrites all of it: alone, after a freeze, after un-sharing.

    Each in a process of its own, since a rewrite after a freeze splits huge pages for good.
    """
    advice = "mmap.MADV_HUGEPAGE" if huge else "mmap.MADV_NOHUGEPAGE"
    setup = SETUP.format(bare=str(bare), size=mib << 20, advice=advice) + REWRITE
    times: dict[str, list[int]] = {"rewrite alone": [], "after freeze": [], "after unshare": []}
    unshare: list[int] = []
    for _ in range(3):
        for name, values in times.items():
            live = world.start(setup)
            live.value("rewrite()")
            if name != "rewrite alone":
                frozen = live.freeze(hot_min=1 << 20)
            if name == "after unshare":
                unshare.append(frozen.ask(tt.UNSHARE, arg64=1 << 40).ns)
            values.append(int(live.value("rewrite()")))
            if name != "rewrite alone":
                frozen.quit()
            live.kill()
    row = {name: median_ms(values) for name, values in times.items()}
    return {**row, "unshare itself": median_ms(unshare)}


REWRITE = """
def rewrite():
    started = time.monotonic_ns()
    for i in range(0, len(data) - len(step), len(step)):
        data[i:i + len(step)] = step
    return time.monotonic_ns() - started
"""


def print_table(measured: Callable[..., dict[str, float]], bare: pathlib.Path) -> None:
    first = True
    for mib in [int(a) for a in sys.argv[1:]] or [10, 100, 1024]:
        for huge in (False, True):
            world = native_build.make_world("user")
            row = measured(world, bare, mib, huge)
            world.close()
            if first:
                print(f"{'MiB':>6}  {'pages':>6}", *(f"{name:>15}" for name in row))
                first = False
            values = (f"{value:>15.3f}" for value in row.values())
            print(f"{mib:>6}  {'huge' if huge else '4K':>6}", *values)


def main() -> None:
    folder = native_build.shared_folder()
    source = folder / "bare.c"
    source.write_text(BARE)
    bare = folder / "bare.so"
    subprocess.run(["cc", "-O2", "-fPIC", "-shared", "-o", bare, source], check=True)
    print_table(measure, bare)
    print()
    print_table(measure_rewrite, bare)
    native_build.clean_up()


main()
