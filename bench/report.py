"""What a benchmark prints, and the command line that both benchmarks of kernels have."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass

from harness import Kernel, Spread, private_home

MB = 1 << 20
GB = 1024 * MB


@dataclass(frozen=True)
class Result:
    """One line of the report. Times in seconds; ``measured`` and ``target`` in the same words.

    ``beside``: what ``base`` is.
    """

    benchmark: str
    case: str
    ours: Spread | None
    base: Spread | None
    measured: str
    target: str = ""
    beside: str = "stock"

    def __str__(self) -> str:
        ours = f"ours {self.ours.ms()}; " if self.ours else ""
        base = f"{self.beside} {self.base.ms()}; " if self.base else ""
        target = f"  [target: {self.target}]" if self.target else ""
        return f"{self.case}: {ours}{base}{self.measured}{target}"


@dataclass(frozen=True)
class Scale:
    """How much to measure."""

    sizes: tuple[int, ...]  # bytes
    checkpoints: int

    @property
    def large(self) -> int:
        """Bytes of the one array of a benchmark that has one."""
        return min(self.sizes[-1], GB)


FULL = Scale(sizes=(10 * MB, 100 * MB, GB, 4 * GB), checkpoints=1000)
QUICK = Scale(sizes=(10 * MB, 100 * MB), checkpoints=200)

Benchmark = Callable[[Scale], Iterator[Result]]


def label(size: int) -> str:
    """A number of bytes."""
    return f"{size // MB} MB" if size < GB else f"{size // GB} GB"


def more(ours: Spread, base: Spread) -> str:
    """The difference and the ratio of two medians."""
    difference = 1000 * (ours.median - base.median)
    return f"{ours.median / base.median:.2f} x, {difference:+.2f} ms"


def parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments that `run` knows."""
    found = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    found.add_argument("names", nargs="*", metavar="NAME", help="which ones (default: all)")
    found.add_argument("--quick", action="store_true", help="smaller sizes, fewer checkpoints")
    found.add_argument("--json", action="store_true", help="print a JSON array")
    found.add_argument("--list", action="store_true", help="say what there is")
    found.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the supervisor, such as auto=changed",
    )
    return found


def run(arguments: argparse.ArgumentParser, benchmarks: Mapping[str, Benchmark]) -> int:
    """Run the benchmarks that the command line names, and print what they find."""
    args = arguments.parse_args()
    Kernel.settings = [f"--Supervisor.{setting}" for setting in args.set]
    if unknown := set(args.names) - set(benchmarks):
        arguments.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    if args.list:
        for name, function in benchmarks.items():
            print(f"{name:18}{(function.__doc__ or '').strip().splitlines()[0]}")
        return 0
    results = []
    for name in args.names or benchmarks:
        function = benchmarks[name]
        if not args.json:
            print(f"\n{name}: {(function.__doc__ or '').strip().splitlines()[0]}", flush=True)
        with private_home():
            for result in function(QUICK if args.quick else FULL):
                results.append(result)
                if not args.json:
                    print(f"  {result}", flush=True)
    if args.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    return 0
