"""``jupyter timetravel kernels``: the kernels with time travel that run now."""

from __future__ import annotations

import argparse

from jupyter_timetravel.access import running
from jupyter_timetravel.access.running import RunningKernel
from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.offline.tables import age_text, table
from kernel_runtime.timeline.text import one_line

SUMMARY = "list the running kernels that have time travel, the newest first"

_HEAD = ("NOTEBOOK", "KERNEL", "STARTED", "AT", "", "ID")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    found = running.survey()
    text = table(_HEAD, [_cells(one) for one in found]) if found else "no kernels"
    tell(args, text, {"kernels": [one.record() for one in found]})
    return 0


def _cells(one: RunningKernel) -> tuple[str, ...]:
    record = one.record()
    return (
        one_line(one.notebook or "(no notebook)", 200),
        one_line(one.kernel_name, 60),
        age_text(one.started_at),
        "" if record["head"] is None else f"#{record['head']}",
        "busy" if record["busy"] else "",
        one_line(one.id, 60),
    )
