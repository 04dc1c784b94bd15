"""Time the time-travel kernel against stock ipykernel, side by side in one run.

    python bench/kernel.py [NAME …] [--quick] [--json] [--list] [--set NAME=VALUE …]

The two kernels take turns, so that whatever else the machine does hits both. A figure is a median
with its quartiles. Nothing here fails because something is slow: targets are printed beside what
was measured. ``--quick`` leaves out the largest sizes and takes 200 checkpoints for 1,000.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from harness import Kernel, Spread, kernels
from report import MB, Benchmark, Result, Scale, label, more, parser, run

from jupyter_timetravel import Client

ARRAY = "import numpy as np; a = np.ones({bytes} // 8)"
POLARS = (
    "import polars as pl; pl.DataFrame({'k': range(100_000)}).group_by('k').agg(pl.len()).height"
)
REWRITE = "import time; t = time.perf_counter(); a += 1; print(time.perf_counter() - t)"
HUGE_PAGES = (
    "print(next(int(l.split()[1]) for l in open('/proc/self/smaps_rollup') "
    "if l.startswith('AnonHugePages')))"
)
BARE_FORK = (
    "import os, time\n"
    "t = time.perf_counter(); pid = os.fork()\n"
    "if pid == 0: os._exit(0)\n"
    "t = time.perf_counter() - t; os.waitpid(pid, 0); print(t)"
)
FORK_EACH = (
    "import ctypes, os\n"
    "libc, frozen = ctypes.CDLL(None), []\n"
    "def fork(*_):\n"
    "    pid = libc.fork()  # nothing of Python's around it\n"
    "    if pid == 0:\n"
    "        while True: libc.pause()\n"
    "    frozen.append(pid)\n"
    "def end():\n"
    "    for pid in frozen: os.kill(pid, 9); os.waitpid(pid, 0)\n"
    "    frozen.clear()\n"
    "get_ipython().events.register('post_run_cell', fork)"
)
"""A stock kernel then does what no checkpoint can do without: a copy of itself after each cell."""


def alternate(count: int, pair: list[Kernel], code: str, pause: float = 0) -> tuple[Spread, Spread]:
    """Run a cell in turns in both kernels; the spreads of the time to the reply."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(count):
        for kernel, found in zip(pair, times, strict=True):
            found.append(kernel.run(code).reply)
            time.sleep(pause)
    return Spread.of(times[0]), Spread.of(times[1])


def round_trip(scale: Scale) -> Iterator[Result]:
    """A trivial cell, with time to think between the cells: is the reply later?"""
    with kernels("stock", "ours") as pair:
        alternate(5, pair, "pass")
        stock, ours = alternate(150, pair, "pass", pause=0.03)
        yield Result("round_trip", "pass", ours, stock, more(ours, stock), "1.10 x")


def storm(name: str, code: str, count: int, pair: list[Kernel]) -> Result:
    times: tuple[list[float], list[float]] = ([], [])
    messages = [0, 0]
    for _ in range(count):
        for index, kernel in enumerate(pair):
            found = kernel.run(code)
            times[index].append(found.idle)
            messages[index] = found.messages
    stock, ours = Spread.of(times[0]), Spread.of(times[1])
    measured = f"{more(ours, stock)}; messages {messages[1]} and {messages[0]}"
    return Result(name, code.splitlines()[-1], ours, stock, measured)


def print_storm(scale: Scale) -> Iterator[Result]:
    """100,000 prints, to the kernel being idle."""
    with kernels("stock", "ours") as pair:
        yield storm("print_storm", "for i in range(100_000): print(i)", 7, pair)


def display_storm(scale: Scale) -> Iterator[Result]:
    """2,000 displays of a small HTML object, to the kernel being idle."""
    code = "from IPython.display import HTML, display\nfor i in range(2_000): display(HTML('x'))"
    with kernels("stock", "ours") as pair:
        yield storm("display_storm", code, 7, pair)


def back_to_back(scale: Scale) -> Iterator[Result]:
    """Trivial cells without a pause, each followed by an automatic checkpoint, at 100 MB."""
    with kernels("stock", "ours", "forking") as three:
        for kernel in three:
            kernel.run(ARRAY.format(bytes=100 * MB))
        forking = three[2]
        forking.run(FORK_EACH)
        times: list[list[float]] = [[], [], []]
        for _ in range(5):  # in blocks: taking turns would give each kernel a pause
            for index, kernel in enumerate(three):
                kernel.run("pass")
                times[index] += [kernel.run("pass").reply for _ in range(30)]
        forking.run("end()")
        stock, ours, forks = (Spread.of(found) for found in times)
        yield Result("back_to_back", "100 MB", ours, stock, more(ours, stock), "+5 ms")
        name = "100 MB, a stock kernel that forks itself after each cell"
        yield Result("back_to_back", name, forks, stock, more(forks, stock))


def checkpoint_pause(scale: Scale) -> Iterator[Result]:
    """How much later the next message is taken because of a checkpoint, against a bare fork."""
    for size in scale.sizes:
        with kernels("ours") as [kernel]:
            kernel.run(ARRAY.format(bytes=size))
            kernel.run("pass")
            rested, hurried, forked = [], [], []
            for _ in range(15):
                time.sleep(0.2)
                rested.append(kernel.run("pass").reply)
                hurried.append(kernel.run("pass").reply)
                time.sleep(0.2)
                forked.append(kernel.number(BARE_FORK))
            base = Spread.of(rested).median
            pause = Spread.of([max(0.0, value - base) for value in hurried])
            fork = Spread.of(forked)
            limit = 1000 * (1.5 * fork.median + 0.003)
            measured = f"a bare fork takes {fork.ms()}"
            yield Result("checkpoint_pause", label(size), pause, None, measured, f"{limit:.1f} ms")


def start_time() -> Spread:
    """From nothing to the first reply of a stock kernel."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        with kernels("stock") as [kernel]:
            kernel.run("pass")
            times.append(time.perf_counter() - started)
    return Spread.of(times)


def restore(scale: Scale) -> Iterator[Result]:
    """From the request of a restore to the first reply of a new cell."""
    fresh = start_time()
    for size in scale.sizes:
        for threads in (False, True):
            with kernels("ours") as [kernel], Client(kernel.client) as client:
                if threads:
                    kernel.run(POLARS)
                kernel.run(ARRAY.format(bytes=size))
                number = client.checkpoint(comment="here").number
                for pause, name in ((1.5, "after 1.5 s"), (0.0, "at once")):
                    times = []
                    for _ in range(9):
                        kernel.run("b = 1")
                        time.sleep(pause)
                        started = time.perf_counter()
                        client.restore(number)
                        kernel.run("pass")
                        times.append(time.perf_counter() - started)
                    ours = Spread.of(times)
                    tenth = 100 * fresh.median
                    limit = 15.0 if pause else 30.0
                    yield Result(
                        "restore",
                        f"{label(size)}{', polars' if threads else ''}, {name}",
                        ours,
                        fresh,
                        f"{ours.median / fresh.median:.3f} of a fresh start",
                        f"{min(limit, tenth):.0f} ms, 0.1 of a fresh start",
                    )


def cow_tax(scale: Scale) -> Iterator[Result]:
    """The first rewrite of an array after a checkpoint, when the cell before rewrote it too."""
    size = scale.large
    with kernels("stock", "ours") as pair:
        for kernel in pair:
            kernel.run(ARRAY.format(bytes=size))
            kernel.run(REWRITE)
        before = [kernel.number(HUGE_PAGES) for kernel in pair]
        for pause, name, target in (
            (1.0, "1 s between cells", "1.5 x"),
            (0, "back to back", ""),
            (3.0, "3 s between cells, after that", "1.5 x"),
        ):
            times: list[list[float]] = [[], []]
            for index, kernel in enumerate(pair):
                kernel.run(REWRITE)
                for _ in range(10):
                    time.sleep(pause)
                    times[index].append(kernel.number(REWRITE))
            stock, ours = Spread.of(times[0]), Spread.of(times[1])
            after = [kernel.number(HUGE_PAGES) for kernel in pair]
            pages = "; ".join(
                f"{kind}: huge pages {old / 1024:.0f} MB, then {new / 1024:.0f} MB"
                for kind, old, new in zip(("stock", "ours"), before, after, strict=True)
            )
            measured = f"{more(ours, stock)}; {pages}"
            yield Result("cow_tax", f"{label(size)}, {name}", ours, stock, measured, target)


def held(scale: Scale) -> Iterator[Result]:
    """Memory that checkpoints hold after trivial cells, a second between them."""
    count = 20
    for name, code in (
        ("nothing imported", "pass"),
        ("pandas and matplotlib", "import pandas, matplotlib.pyplot"),
        ("an array of 200 MB", ARRAY.format(bytes=200 * MB)),
    ):
        with kernels("ours") as [kernel], Client(kernel.client) as client:
            kernel.run(code)
            time.sleep(2)
            before = client.status().memory["frozen_bytes"]
            for _ in range(count):
                kernel.run("x = 1")
                time.sleep(1)
            each = (client.status().memory["frozen_bytes"] - before) / count
            text = (
                f"{each / MB:.1f} MB for each of {count} checkpoints, {before / MB:.0f} MB before"
            )
            yield Result("held", name, None, None, text)


def thousand(scale: Scale) -> Iterator[Result]:
    """1,000 checkpoints in one session: does the last cost more than the first?"""
    count = scale.checkpoints
    with kernels("ours") as [kernel], Client(kernel.client) as client:
        times = [kernel.run(f"x = {number}").idle for number in range(count)]
        first, last = Spread.of(times[: count // 10]), Spread.of(times[-count // 10 :])
        measured = f"the first tenth took {first.ms()}: {last.median / first.median:.2f} x"
        yield Result("thousand", f"cells {count * 9 // 10} to {count}", last, None, measured, "1 x")
        listing = []
        for _ in range(9):
            started = time.perf_counter()
            found = len(client.list())
            listing.append(time.perf_counter() - started)
        spread = Spread.of(listing)
        yield Result("thousand", f"list of {found}", spread, None, "request to reply", "50 ms")


BENCHMARKS: dict[str, Benchmark] = {
    function.__name__: function
    for function in (
        *(round_trip, print_storm, display_storm, back_to_back, checkpoint_pause, restore),
        *(cow_tax, held, thousand),
    )
}


if __name__ == "__main__":
    sys.exit(run(parser(__doc__), BENCHMARKS))
