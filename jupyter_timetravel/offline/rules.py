"""Which checkpoints ``jupyter timetravel prune`` deletes, and what it says of it."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from kernel_runtime.errors import BadRequest
from kernel_runtime.timeline import Checkpoint, Timeline
from kernel_runtime.timeline.retention import RetentionRules, implausible, plan_retention
from kernel_runtime.timeline.text import plural, size_text

_DEFAULT: Final = "30d"
_UNITS: Final = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_SIZES: Final = {"": 1, "k": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that make the rules."""
    parser.add_argument(
        "--older-than",
        metavar="AGE",
        help=f"checkpoints older than 12h, 30d or 8w (default: {_DEFAULT}, if no rule is given)",
    )
    for name, what in (
        ("keep-last", "leave the newest COUNT automatic ones of each session"),
        ("hourly", "leave the last of each of the newest COUNT hours that have one"),
        ("daily", "leave the last of each of the newest COUNT days that have one"),
    ):
        more = ("--keep",) if name == "keep-last" else ()
        parser.add_argument(f"--{name}", *more, metavar="COUNT", type=int, help=what)
    parser.add_argument(
        "--budget",
        metavar="SIZE",
        help="while all sessions take more than 500M or 20G, the oldest automatic ones go",
    )
    parser.add_argument(
        "--all", action="store_true", help="labelled, pinned and manual ones, and the newest too"
    )


def of(args: argparse.Namespace) -> RetentionRules:
    """What the options ask for. Raises BadRequest."""
    for name in ("keep_last", "hourly", "daily"):
        if (getattr(args, name) or 0) < 0:
            raise BadRequest(
                f"--{name.replace('_', '-')} takes a number from 0 on. Nothing was done."
            )
    given = (args.keep_last, args.hourly, args.daily, args.budget)
    age = args.older_than or (_DEFAULT if all(one is None for one in given) else None)
    return RetentionRules(
        keep_last=args.keep_last,
        hourly=args.hourly,
        daily=args.daily,
        older_than=duration(age) if age else None,
        budget_bytes=_size(args.budget) if args.budget else None,
    )


def _size(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,9})([kMGT]?)B?", text)
    if found is None:
        raise BadRequest(f"{text!r} is no size: write 500M or 20G. Nothing was done.")
    return int(found[1]) * _SIZES[found[2]]


_LONGEST: Final = timedelta(days=36525)
"""Nothing is older; a date before the year 1 cannot be told."""


def duration(text: str) -> timedelta:
    """An age as people write it. Raises BadRequest."""
    found = re.fullmatch(r"([0-9]{1,6})([mhdw])", text)
    if found is None:
        raise BadRequest(f"{text!r} is no age: write 90m, 12h, 30d or 8w. Nothing was done.")
    return min(_LONGEST, timedelta(seconds=int(found[1]) * _UNITS[found[2]]))


@dataclass
class Report:
    """What was, or would be, freed."""

    dry_run: bool
    lines: list[str] = field(default_factory=list)
    freed: int = 0

    def add(self, what: str, size: int = 0) -> None:
        """One line."""
        self.freed += size
        self.lines.append(f"{what}{f': {size_text(size)}' if size else ''}")

    def text(self) -> str:
        """All lines and the sum."""
        verb = "or more would be freed" if self.dry_run else "freed"
        lines = self.lines or ["nothing to delete"]
        return "\n".join([*lines, f"{size_text(self.freed)} {verb}"])


@dataclass
class Wanted:
    """Which checkpoints are to go."""

    rules: RetentionRules
    everything: bool
    now: datetime
    charges: dict[str, dict[str, int]] = field(default_factory=dict)
    """By session and checkpoint, where there is a budget."""
    excess: int = 0
    """Bytes by which all that is stored is over the budget still."""

    def of(self, timeline: Timeline, name: str, report: Report) -> list[Checkpoint]:
        """Oldest first."""
        if self.everything:
            return self._everything(timeline, name, report)
        sizes = self.charges.get(timeline.id, {})
        before = sum(sizes.values())
        rules = self.rules
        if rules.budget_bytes is not None:
            rules = replace(rules, budget_bytes=max(0, before - max(0, self.excess)))
        plan = plan_retention(timeline, rules, sizes, now=self.now)
        self.excess -= before - plan.bytes_after
        _say_doubtful(len(plan.doubtful), name, report)
        return [timeline[id] for id in plan.delete]

    def _everything(self, timeline: Timeline, name: str, report: Report) -> list[Checkpoint]:
        chosen = list(timeline)[: max(0, len(timeline) - (self.rules.keep_last or 0))]
        if self.rules.older_than is None:
            return chosen
        doubtful = implausible(timeline, self.now)
        _say_doubtful(sum(c.id in doubtful for c in chosen), name, report)
        before = self.now - self.rules.older_than
        return [c for c in chosen if c.created_at < before and c.id not in doubtful]


def _say_doubtful(count: int, name: str, report: Report) -> None:
    if count:
        report.add(f"{name}: {plural(count, 'checkpoint')} whose time cannot be right left alone")
