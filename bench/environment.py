"""What the environment's overlay costs, with it and without it side by side in one run.

    python bench/environment.py [NAME …] [--quick]

Both kernels are this one; the second is started with ``--Supervisor.environment=off``. They take
turns, so that whatever else the machine does hits both. Writes below the home directory of the user
and below ``sys.prefix``, and removes what it wrote (in the kernel with the overlay it reaches
neither). Nothing here fails because something is slow: targets are printed beside the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from harness import Kernel, Spread, private_home

from jupyter_timetravel import Client

FILES = """
import os
for i in range({count}):
    os.makedirs({where!r} + f'/d{{i % 50}}', exist_ok=True)
    with open({where!r} + f'/d{{i % 50}}/f{{i}}', 'wb') as f: f.write(b'z' * 20000)
"""
BIG = (
    "f = open({where!r} + '/big', 'wb'); [f.write(bytes(1 << 20)) for _ in range({mb})]; f.close()"
)
IMPORT = (
    "import subprocess, sys, time; t = time.perf_counter(); "
    "subprocess.run([sys.executable, '-c', 'import pandas, sklearn'], check=True); "
    "print(time.perf_counter() - t)"
)
# Into a directory of its own each time, as an install is: --target would unpack in /tmp and move,
# a copy where the target is another filesystem; and for some seconds ext4 does not give out again
# the inodes of files that were deleted, so that what is installed next searches for others.
INSTALL = (
    "import subprocess, sys, tempfile, time; where = tempfile.mkdtemp(dir={where!r}); "
    "t = time.perf_counter(); "
    "subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', '--no-index', '--no-deps', "
    "'--disable-pip-version-check', '--ignore-installed', '--no-warn-script-location', "
    "'--prefix', where, {wheel!r}], check=True); "
    "print(time.perf_counter() - t)"
)


class Pair:
    """The two kernels, each with a directory of its own below the home directory."""

    def __init__(self, root: Path, auto: str) -> None:
        """auto: when they make checkpoints by themselves."""
        self.kernels: list[Kernel] = []
        self.places: list[str] = []
        for name, settings in (("with", ()), ("without", ("--Supervisor.environment=off",))):
            folder, place = root / f"{name}-{auto}-work", root / f"{name}-{auto}"
            folder.mkdir()
            place.mkdir()
            Kernel.settings = [f"--Supervisor.auto={auto}", *settings]
            self.kernels.append(Kernel("ours", folder))
            self.places.append(str(place))
        self.clients = [
            Client.from_connection_file(kernel.manager.connection_file) for kernel in self.kernels
        ]

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for kernel in self.kernels:
            kernel.close()


def show(what: str, pair: tuple[Spread, Spread], target: str) -> None:
    """One line of the report."""
    ours, beside = pair
    print(
        f"{what}: with {ours.ms()}; without {beside.ms()}; "
        f"{1000 * (ours.median - beside.median):+.2f} ms, {ours.median / beside.median:.2f} x"
        f"  [target: {target}]",
        flush=True,
    )


def alternate(count: int, work: Callable[[int], float]) -> tuple[Spread, Spread]:
    """Do work for the first and the second kernel in turns."""
    times: list[list[float]] = [[], []]
    for _ in range(count):
        for side in (0, 1):
            times[side].append(work(side))
    return Spread.of(times[0]), Spread.of(times[1])


def bench_start(root: Path, count: int) -> None:
    """From starting the process to the first answer."""

    def start(kind: str, *settings: str) -> float:
        folder = Path(tempfile.mkdtemp(dir=root))
        Kernel.settings = settings
        begun = time.perf_counter()
        kernel = Kernel(kind, folder)
        took = time.perf_counter() - begun
        kernel.close()
        return took

    times: dict[str, list[float]] = {"with": [], "without": [], "no sandbox": [], "stock": []}
    for _ in range(count):
        times["with"].append(start("ours"))
        times["without"].append(start("ours", "--Supervisor.environment=off"))
        times["no sandbox"].append(start("ours", "--Supervisor.sandbox=none"))
        times["stock"].append(start("stock"))
    spreads = {name: Spread.of(values) for name, values in times.items()}
    show("start", (spreads["with"], spreads["without"]), "none")
    show("start, beside no sandbox", (spreads["with"], spreads["no sandbox"]), "+100 ms")
    show("start, beside stock ipykernel", (spreads["with"], spreads["stock"]), "none")


def bench_checkpoint(pair: Pair, count: int, quick: bool) -> None:
    """The reply to a cell that is sent at once after one that wrote to the environment."""

    def after(code: str) -> Callable[[int], float]:
        def work(side: int) -> float:
            pair.kernels[side].run(code.replace("WHERE", pair.places[side]))
            return pair.kernels[side].run("pass").reply

        return work

    show("checkpoint, nothing changed", alternate(count, after("pass")), "+3 ms")
    files = FILES.format(count=5000, where="WHERE")
    show("checkpoint, 5,000 files written", alternate(max(3, count // 4), after(files)), "+10 ms")
    big = BIG.format(mb=100 if quick else 1024, where="WHERE")
    show("checkpoint, 1 GB written", alternate(3, after(big)), "+10 ms")


def bench_restore(pair: Pair, count: int) -> None:
    """A restore by a client to the first reply of a cell, after everything was deleted."""
    for side in (0, 1):
        files = FILES.format(count=5000, where=pair.places[side])
        pair.kernels[side].run(f"{files}\nx = 1")
    targets = [client.checkpoint().number for client in pair.clients]

    def restore(code: str) -> Callable[[int], float]:
        def work(side: int) -> float:
            # without the overlay nothing would bring the files back: only the process is timed
            if side == 0:
                pair.kernels[side].run(code.replace("WHERE", pair.places[side]))
            else:
                pair.kernels[side].run("x = 2")
            pair.clients[side].checkpoint()
            time.sleep(1.5)
            begun = time.perf_counter()
            pair.clients[side].restore(targets[side])
            pair.kernels[side].run("x")
            return time.perf_counter() - begun

        return work

    show("restore, nothing changed", alternate(count, restore("x = 2")), "+10 ms")
    delete = "import shutil; shutil.rmtree('WHERE', ignore_errors=True)"
    show("restore, 5,000 files deleted", alternate(count, restore(delete)), "+10 ms")
    write = FILES.format(count=4000, where="WHERE/new")
    show("restore, 4,000 new files taken back", alternate(count, restore(write)), "60 ms in all")


def bench_files(pair: Pair, count: int, wheel: str | None) -> None:
    """Work on files inside and outside, at little depth and at a depth of 100."""
    for depth in (1, 100):
        if depth > 1:
            for number in range(depth):
                pair.kernels[0].run(f"open({sys.prefix!r} + '/tt-bench-{number}', 'w').close()")
                pair.clients[0].checkpoint()
        show(
            f"import pandas, sklearn, after {depth} captures",
            alternate(count, lambda side: pair.kernels[side].number(IMPORT)),
            "1.10 x",
        )
        if wheel:
            show(
                f"pip install {Path(wheel).name}, after {depth} captures",
                alternate(
                    max(3, count // 3),
                    lambda side: pair.kernels[side].number(
                        INSTALL.format(where=pair.places[side], wheel=wheel)
                    ),
                ),
                "1.10 x",
            )


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """A directory below the home directory: /tmp is the host's own inside."""
    root = Path(tempfile.mkdtemp(prefix=".timetravel-bench-", dir=Path.home()))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="start, checkpoint, restore, files; all if none")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--wheel", help="a wheel to install, for example numpy's")
    args = parser.parse_args()
    wanted = set(args.names or ("start", "checkpoint", "restore", "files"))
    count = 5 if args.quick else 15
    with private_home(), place() as root:
        if "start" in wanted:
            bench_start(root, max(3, count // 2))
        if "checkpoint" in wanted:
            with contextlib.closing(Pair(root, "cell")) as pair:
                bench_checkpoint(pair, count, args.quick)
        with contextlib.closing(Pair(root, "off")) as pair:
            if "restore" in wanted:
                bench_restore(pair, count)
            if "files" in wanted:
                bench_files(pair, count, args.wheel)


if __name__ == "__main__":
    main()
