"""``jupyter timetravel doctor``: what this machine offers, what is missing, how to mend it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jupyter_timetravel.checks import CHECKS
from jupyter_timetravel.findings import FINE, LIMITED, MISSING, SKIPPED, Check, Finding

SUMMARY = "say what this machine offers to time travel, what is missing, and how to mend it"
MARKS = {FINE: "✓", LIMITED: "!", MISSING: "✗", SKIPPED: "-"}


class Row(NamedTuple):
    """A check and what it found."""

    check: Check
    finding: Finding


def examine(checks: Iterable[Check] = CHECKS) -> list[Row]:
    """Run the checks, in order. A check that breaks is reported as such and stops nothing."""
    rows = []
    for check in checks:
        try:
            finding = check.run()
        except Exception as error:
            finding = Finding(SKIPPED, f"the check itself failed: {type(error).__name__}: {error}")
        rows.append(Row(check, finding))
    return rows


def as_text(rows: Sequence[Row]) -> str:
    """A table, then the mends in the order in which to try them, then one line of summary."""
    width = max(len(row.check.name) for row in rows)
    lines = [
        f"{MARKS[finding.state]} {check.name:{width}}  {finding.state:7}  {finding.text}"
        for check, finding in rows
    ]
    mends = [
        f"  {check.name} ({check.purpose}):\n    {finding.mend}"
        for check, finding in rows
        if finding.mend
    ]
    if mends:
        lines += ["", "To mend:", *mends]
    states = {row.finding.state for row in rows}
    if MISSING in states:
        summary = "Time travel does not work here."
    elif LIMITED in states:
        summary = "Time travel works here, with the limits above."
    else:
        summary = "Time travel works here in full."
    return "\n".join([*lines, "", summary])


def as_json(rows: Sequence[Row]) -> str:
    """A JSON array with one object for each check; its keys are part of the interface."""
    return json.dumps(
        [
            {"name": check.name, "purpose": check.purpose, **finding._asdict()}
            for check, finding in rows
        ],
        indent=2,
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print a JSON array instead")


def run(args: argparse.Namespace) -> int:
    """Print the findings. The status is 1 where time travel does not work."""
    rows = examine()
    print(as_json(rows) if args.json else as_text(rows))
    return int(any(row.finding.state == MISSING for row in rows))
