"""What captures and restores of a workspace cost.

    python bench/workspace.py [--files 50000] [--directory DIR]

Makes a tree of small files in a new directory below DIR (default: the system's temporary
directory), times the engine on it, and removes it. Prints medians in milliseconds, and what
the store grew by.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kernel_runtime.engines.workspace.engine import WorkspaceEngine
from kernel_runtime.store.blobs import BlobStore

MIB = 1 << 20


class Bench:
    """One tree, one store, one engine."""

    def __init__(self, base: Path, files: int) -> None:
        self.root, self.store = base / "W", BlobStore(base / "store")
        self.base, self.files = base, files
        self.root.mkdir()
        for number in range(files):
            where = self.root / f"d{number // 1000}" / f"e{number // 20 % 50}"
            if number % 20 == 0:
                where.mkdir(parents=True, exist_ok=True)
            (where / f"f{number}").write_bytes(b"%d" % number * 100)
        self.engine = self.new_engine()

    def new_engine(self) -> WorkspaceEngine:
        """As the next session would make it."""
        return WorkspaceEngine(
            [self.root], self.store, journal_dir=self.base / "journal",
            document=self.root / "none.ipynb",
        )  # fmt: skip

    def line(self, what: str, work: Callable[[], object], times: int = 1) -> None:
        """Time something and print a line."""
        took: list[float] = []
        before = self.store.put_bytes
        for _ in range(times):
            begin = time.perf_counter()
            work()
            took.append((time.perf_counter() - begin) * 1000)
        grown = (self.store.put_bytes - before) / times / 1024
        print(f"{what:58} {statistics.median(took):10.1f} ms {grown:12.1f} KiB")

    def change(self, count: int = 1) -> None:
        """Change the first files."""
        for number in range(count):
            where = self.root / f"d{number // 1000}" / f"e{number // 20 % 50}"
            (where / f"f{number}").write_text(str(time.perf_counter_ns()))


def scan_and_stat(top: Path) -> int:
    """The least that any scan does: list everything, stat everything."""
    count = 0
    pending = [str(top)]
    while pending:
        with os.scandir(pending.pop()) as listing:
            for item in listing:
                item.stat(follow_symlinks=False)
                count += 1
                if item.is_dir(follow_symlinks=False):
                    pending.append(item.path)
    return count


def run(bench: Bench) -> None:
    """All measurements, in the order in which a session meets them."""
    bench.line("bare scandir and stat of the tree", lambda: scan_and_stat(bench.root), 3)
    bench.line("first capture", bench.engine.capture)
    bench.line("make it durable (flush)", bench.store.flush)
    bench.line("nothing changed, watched", bench.engine.capture, 50)

    def one_file() -> None:
        bench.change()
        bench.engine.capture()

    bench.line("one file changed, watched", one_file, 50)

    def one_file_durable() -> None:
        one_file()
        bench.store.flush()

    bench.line("one file changed, watched, durable", one_file_durable, 20)
    bench.engine.close()
    bench.engine = bench.new_engine()
    bench.line("first capture after a restart (index)", bench.engine.capture)
    bench.engine._capturer._stop_watching("to measure")
    bench.line("nothing changed, scanned", bench.engine.capture, 5)
    bench.line("one file changed, scanned", one_file, 5)
    bench.engine.close()
    bench.engine = bench.new_engine()
    bench.engine.capture()

    target = bench.engine.capture()
    bench.change(1)
    plan = bench.engine.plan_restore(target.id)
    safety = bench.engine.capture()
    bench.line("restore one file", lambda: bench.engine.restore(plan, foreign=safety))
    target = bench.engine.capture()
    bench.change(1000)
    bench.line("capture of 1,000 changed files", bench.engine.capture)
    bench.line("plan to restore them", lambda: bench.engine.plan_restore(target.id))
    plan = bench.engine.plan_restore(target.id)
    bench.line("restore of 1,000 changed files", lambda: bench.engine.restore(plan))
    target = bench.engine.capture()
    for number in range(5):
        shutil.rmtree(bench.root / f"d{number}")
    plan = bench.engine.plan_restore(target.id)
    bench.line("restore of 5,000 deleted files", lambda: bench.engine.restore(plan))
    bench.line("capture after that", bench.engine.capture)
    bench.line("collect garbage", bench.engine.collect_garbage)

    big = bench.root / "big.bin"
    with open(big, "wb") as file:
        for _ in range(256):
            file.write(os.urandom(MIB))
    bench.line("capture of a new file of 256 MiB", bench.engine.capture)
    target = bench.engine.capture()
    with open(big, "r+b") as update:
        update.seek(100 * MIB)
        update.write(b"x" * 10)
    bench.line("capture after 10 bytes in it changed", bench.engine.capture)
    plan = bench.engine.plan_restore(target.id)
    bench.line("restore of that file", lambda: bench.engine.restore(plan))
    log = bench.root / "log.txt"

    def append() -> None:
        with open(log, "a") as text:
            text.write("line\n" * 1000)
        bench.engine.capture()

    bench.line("5 KB appended to a log, 500 times", append, 500)
    bench.engine.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process: {peak:.0f} MiB")


def main() -> None:
    """Parse the command line, run, clean up."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--directory", type=Path, default=None)
    arguments = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="tt-bench-", dir=arguments.directory))
    try:
        run(Bench(base, arguments.files))
    finally:
        shutil.rmtree(base)


if __name__ == "__main__":
    main()
