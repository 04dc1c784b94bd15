"""``jupyter timetravel doctor``: what this machine offers, what is missing, how to mend it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from jupyter_timetravel.checks import CHECKS
from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.findings import FAULTY, FINE, LIMITED, MISSING, SKIPPED, Check, Finding

SUMMARY = "say what this machine offers to time travel, what is missing, and how to mend it"
MARKS = {FINE: "✓", LIMITED: "!", FAULTY: "✗", MISSING: "✗", SKIPPED: "-"}


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
    elif FAULTY in states:
        summary = "Time travel works here, but not all of it is set up."
    elif LIMITED in states:
        summary = "Time travel works here, with the limits above."
    else:
        summary = "Time travel works here in full."
    return "\n".join([*lines, "", summary])


def as_records(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One object for each check; its keys are part of the interface."""
    return [
        {"name": check.name, "purpose": check.purpose, **finding._asdict()}
        for check, finding in rows
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(args: argparse.Namespace) -> int:
    """Print the findings. The status is 1 where it does not work, or is not set up as a whole."""
    rows = examine()
    tell(args, as_text(rows), {"checks": as_records(rows)})
    return int(any(row.finding.state in (MISSING, FAULTY) for row in rows))
