"""Time durable checkpoints: what they cost the session, the disk and a restore.

    python bench/durable.py [NAME …] [--quick] [--json] [--list] [--set NAME=VALUE …]

Sides take turns in one run. Where a figure is the processor time of everything that the kernel
started (copy, scratch process, store) it says so: those run at low priority, so on a loaded
machine the time on the clock is mostly waiting. What the disk got is the growth of the store's
folder, in blocks. Nothing here fails because something is slow.
"""

from __future__ import annotations

import hashlib
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
from harness import BenchError, Kernel, Spread, kernels, notebook
from report import MB, Benchmark, Result, Scale, label, parser, run

from jupyter_timetravel import Client
from kernel_runtime.store.namespaces import NamespaceStore
from kernel_runtime.supervisor.limits import memory_limit

PIECE = 4 * MB
ARRAY = "import numpy as np; a = np.random.default_rng(0).random({bytes} // 8)"
DICTS = "dicts = [{'id': n, 'name': f'name {n}', 'value': n / 7} for n in range(100_000)]"
SPIN = (
    "import time; t = time.perf_counter()\n"
    "for n in range(5_000_000): pass\n"
    "print(time.perf_counter() - t)"
)
REWRITES = (
    "import time; t = time.perf_counter(); a += 1; u = time.perf_counter(); a += 1\n"
    "print(u - t, time.perf_counter() - u)"
)
WAIT_S = 300


class Session:
    """A kernel of ours, and what its checkpoints leave on the disk."""

    def __init__(self, kernel: Kernel, client: Client) -> None:
        self.kernel, self.client = kernel, client
        self.store = Path(os.environ["JUPYTER_DATA_DIR"], "timetravel")

    def blocks(self, folder: str = "namespaces") -> int:
        """Bytes on the disk below a folder of the store."""
        files = Path(self.store, folder).rglob("*")
        return sum(512 * os.lstat(file).st_blocks for file in files)

    def cpu(self) -> float:
        """Seconds of processor time of the supervisor and all that it ever started."""
        supervisor = psutil.Process(self.kernel.manager.provisioner.process.pid)
        total = 0.0
        for process in (supervisor, *supervisor.children(recursive=True)):
            try:
                total += sum(process.cpu_times()[:4])
            except psutil.Error:
                continue
        return total

    def state(self, number: int) -> str | None:
        """Of the namespace capture of a checkpoint."""
        capture = self.client.get(number).capture("namespace")
        if capture is not None and capture.state == "failed":
            raise BenchError(f"#{number} was not written: {capture.error}")
        return capture.state if capture else None

    def durable(self) -> Cost:
        """Make a checkpoint of the present, wait until it is on the disk."""
        disk, cpu, started = self.blocks(), self.cpu(), time.perf_counter()
        number = self.client.checkpoint(comment="here").number
        self.wait(number)
        took = time.perf_counter() - started
        time.sleep(0.3)  # what has ended is reaped
        return Cost(number, self.blocks() - disk, self.cpu() - cpu, took)

    def settle(self, policy: str) -> None:
        """Let what is being written end, then go on with a policy; ``every`` begins at once."""
        self.client.config(durability="manual")
        quiet = 0
        while quiet < 3:
            newest = [record.capture("namespace") for record in self.client.list()[-30:]]
            is_busy = any(capture and capture.state == "pending" for capture in newest)
            quiet = 0 if is_busy else quiet + 1
            time.sleep(0.1)
        self.client.config(durability=policy)
        self.kernel.run("pass")

    def wait(self, number: int) -> None:
        """Until a checkpoint is on the disk."""
        end = time.monotonic() + WAIT_S
        while self.state(number) != "ready":
            if time.monotonic() > end:
                raise BenchError(f"#{number} was not written within {WAIT_S} s")
            time.sleep(0.2)


class Cost:
    """What one durable checkpoint took: bytes, seconds of processor time, seconds."""

    def __init__(self, number: int, added: int, cpu: float, took: float) -> None:
        self.number, self.added, self.cpu, self.took = number, added, cpu, took


@contextmanager
def session(*settings: str) -> Iterator[Session]:
    """A kernel of ours with a client of the time-travel protocol."""
    with (
        notebook(),
        kernels("ours") as [kernel],
        Client(kernel.client, timeout=WAIT_S) as client,
    ):
        found = Session(kernel, client)
        client.config(durability="manual", durability_interval=0.0)
        yield found


def hashing(data: Any) -> float:
    """Processor seconds of one pass of hashing over memory."""
    view = memoryview(data).cast("B")
    started = time.thread_time()
    for start in range(0, len(view), PIECE):
        hashlib.blake2b(view[start : start + PIECE], digest_size=32).digest()
    return time.thread_time() - started


def megabytes(count: float) -> str:
    return f"{count / 1e6:.2f} MB"


POLICIES = ("every", "manual")


def pause(scale: Scale) -> Iterator[Result]:
    """How much later the next message is taken because of a checkpoint, with a copy and without.

    A copy is being written all the time: as soon as one is done, the next is begun. Sides take
    turns in short blocks: a copy that was begun is to end before the other side. Run it at
    real-time priority where the machine does other work: copies step back from it by themselves.
    """
    for size in scale.sizes:
        with session() as here:
            here.kernel.run(ARRAY.format(bytes=size))
            here.durable()
            rested: list[float] = []
            blocks: dict[str, list[list[float]]] = {policy: [] for policy in POLICIES}
            for turn in range(BLOCKS):
                for policy in POLICIES if turn % 2 else reversed(POLICIES):
                    here.settle(policy)
                    block = []
                    for _ in range(6):
                        time.sleep(0.2)
                        reply = here.kernel.run("pass").reply
                        if policy == "manual":
                            rested.append(reply)
                        block.append(here.kernel.run("pass").reply)
                    blocks[policy].append(block)
            base = Spread.of(rested).median
            whole = {policy: list(chain(*found)) for policy, found in blocks.items()}
            yield compared("pause", label(size), whole, base)
            yield Result("pause", f"{label(size)}, interval", None, None, interval(blocks, base))


BLOCKS = 12
RESAMPLED = 4000


def interval(blocks: dict[str, list[list[float]]], base: float) -> str:
    """Where nineteen of twenty ratios lie when the turns are drawn anew (bootstrap).

    Of medians less base, and of lower quartiles, which what else the machine does disturbs less.
    Whole turns are drawn, so that what it did during one counts once.
    """
    chance = random.Random(0)
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(RESAMPLED):
        turns = chance.choices(range(BLOCKS), k=BLOCKS)
        every, manual = (Spread.of([*chain(*(blocks[p][t] for t in turns))]) for p in POLICIES)
        found[0].append((every.median - base) / (manual.median - base))
        found[1].append(every.low / manual.low)
    cuts = [statistics.quantiles(ratios, n=40) for ratios in found]
    medians, quartiles = (f"{one[0]:.2f} to {one[-1]:.2f}" for one in cuts)
    return f"95 % intervals: medians {medians} x; lower quartiles, nothing taken off, {quartiles} x"


def back_to_back(scale: Scale) -> Iterator[Result]:
    """Trivial cells without a pause, while copies are written and without, at 100 MB."""
    with session() as here:
        here.kernel.run(ARRAY.format(bytes=100 * MB))
        here.durable()
        times: dict[str, list[float]] = {policy: [] for policy in POLICIES}
        for _ in range(8):
            for policy, found in times.items():
                here.settle(policy)
                found += [here.kernel.run("pass").reply for _ in range(20)]
        yield compared("back_to_back", "100 MB", times)


def compared(benchmark: str, case: str, times: dict[str, list[float]], base: float = 0) -> Result:
    """What two policies take, less what both have in common."""
    every, manual = (Spread.of([value - base for value in times[name]]) for name in POLICIES)
    low = (every.low + base) / (manual.low + base)
    ratio = f"{every.median / manual.median:.2f} x; lower quartiles, nothing taken off, {low:.2f} x"
    return Result(benchmark, case, every, manual, ratio, "1.10 x", "nothing written")


def beside(scale: Scale) -> Iterator[Result]:
    """A cell that needs the processor, while a changed array is written and while nothing is."""
    size = scale.large
    with session() as here:
        here.kernel.run(ARRAY.format(bytes=size))
        times: dict[str, list[float]] = {policy: [] for policy in POLICIES}
        for _ in range(5):
            for policy, found in times.items():
                here.settle("manual")
                here.kernel.run("a += 1")
                here.settle(policy)
                time.sleep(0.2)
                found.append(here.kernel.number(SPIN))
        yield compared("beside", label(size), times)


def unchanged(scale: Scale) -> Iterator[Result]:
    """A second durable checkpoint of one array that did not change."""
    size = scale.large
    with session() as here:
        here.kernel.run(ARRAY.format(bytes=size))
        data = os.urandom(min(size, 256 * MB))
        part = size / len(data)
        first = here.durable()
        costs, passes = [], []
        for number in range(5):
            passes.append(part * hashing(data))
            here.kernel.run(f"x = {number}")
            costs.append(here.durable())
        ours, base = Spread.of([cost.cpu for cost in costs]), Spread.of(passes)
        added = megabytes(max(cost.added for cost in costs))
        yield Result("unchanged", f"{label(size)}, bytes", None, None, f"{added} more", "1 MB")
        ratio = f"{ours.median / base.median:.2f} x"
        case = f"{label(size)}, processor time"
        yield Result("unchanged", case, ours, base, ratio, "1 x", "one pass of hashing")
        text = f"{first.cpu:.2f} s of processor time, {megabytes(first.added)}"
        yield Result("unchanged", f"{label(size)}, the first one", None, None, text)


def one_dict(scale: Scale) -> Iterator[Result]:
    """One small dict changed in a list of 100,000: what the next durable checkpoint adds."""
    with session() as here:
        here.kernel.run(DICTS)
        first = here.durable()
        for case, code in (
            ("a number", "dicts[{n}]['value'] += 1"),
            ("a text", "dicts[{n}]['name'] = 'a name that is longer'"),
            ("a key more", "dicts[{n}]['new'] = {n}"),
        ):
            added = []
            for n in (50_000, 3, 77_777):
                here.kernel.run(code.format(n=n))
                added.append(here.durable().added)
            text = f"{megabytes(max(added))} more, the first one {megabytes(first.added)}"
            yield Result("one_dict", case, None, None, text, "1 MB")


def loading(scale: Scale) -> Iterator[Result]:
    """Variables from the disk against reading their blobs (read, unpack, check)."""
    size = scale.large
    with session() as here:
        here.kernel.run(ARRAY.format(bytes=size // 4))
        here.kernel.run("b, c, d = a + 1, a * 2, np.arange(len(a))")
        number = here.durable().number
        store = NamespaceStore(here.store)
        names = set(store.blobs())
        yield brought(here, store, number, names, f"{label(size)}, bring")
        here.kernel.run("a += 1; b += 1; c += 1; d += 1")
        number = here.durable().number
        later = set(store.blobs()) - names
        yield brought(here, store, number, later, f"{label(size)}, bring what is stored as deltas")


def brought(
    here: Session, store: NamespaceStore, number: int, names: set[str], case: str
) -> Result:
    """What it takes to bring four variables, and to read these blobs."""
    times: list[float] = []
    read: list[float] = []
    plain: list[float] = []
    for _ in range(5):
        here.kernel.run("a = b = c = d = None")
        started = time.perf_counter()
        here.client.bring(number, ["a", "b", "c", "d"])
        times.append(time.perf_counter() - started)
        started = time.perf_counter()
        for name in names:
            store.get(name)
        read.append(time.perf_counter() - started)
        started = time.perf_counter()
        for name in names:
            Path(store.path, "blobs", name[:2], name).read_bytes()
        plain.append(time.perf_counter() - started)
    ours, base = Spread.of(times), Spread.of(read)
    ratio = f"{ours.median / base.median:.2f} x; files as they are {Spread.of(plain).ms()}"
    return Result("loading", case, ours, base, ratio, "1.5 x", "reading")


def resume(scale: Scale) -> Iterator[Result]:
    """A new kernel: from the request to resume to the first reply, against reading the blobs."""
    size = scale.large
    with session() as here:
        here.kernel.run(ARRAY.format(bytes=size))
        here.durable()
        store = NamespaceStore(here.store)
        names = sorted(store.blobs())
    resumed, read = [], []
    for _ in range(5):
        started = time.perf_counter()
        for name in names:
            store.get(name)
        read.append(time.perf_counter() - started)
        with session() as here:
            started = time.perf_counter()
            here.client.resume()
            here.kernel.run("a[0]")
            resumed.append(time.perf_counter() - started)
    ours, base = Spread.of(resumed), Spread.of(read)
    ratio = f"{ours.median / base.median:.2f} x (a new process and numpy's import are in it)"
    yield Result("resume", label(size), ours, base, ratio, "1.5 x", "reading")


def rewrites(scale: Scale) -> Iterator[Result]:
    """Cells that each rewrite an array, which is written to the disk in between.

    The first rewrite of a cell against its second, before which there is no checkpoint.
    """
    size, pause_s = scale.large // 2, 6.0
    with session() as here:
        here.kernel.run(ARRAY.format(bytes=size))
        here.kernel.run("a += 1")
        here.client.config(durability="every", durability_interval=5.0)
        for name, room in (("memory to spare", None), ("memory for four checkpoints", 4.5)):
            if room is not None:
                fraction = room * size / memory_limit()
                here.client.config(memory_fraction=fraction)
            times = []
            for _ in range(10):
                times.append([float(text) for text in here.kernel.run(REWRITES).text.split()])
                time.sleep(pause_s)
            first, second = (Spread.of(list(some)) for some in zip(*times[2:], strict=True))
            ratio = f"{first.median / second.median:.2f} x; each: " + " ".join(
                f"{a / b:.1f}" for a, b in times
            )
            what = f"{label(size)}, {pause_s:.0f} s between cells, {name}"
            yield Result("rewrites", what, first, second, ratio, "1.5 x", "again")


BENCHMARKS: dict[str, Benchmark] = {
    function.__name__: function
    for function in (pause, back_to_back, beside, unchanged, one_dict, loading, resume, rewrites)
}


if __name__ == "__main__":
    sys.exit(run(parser(__doc__), BENCHMARKS))
