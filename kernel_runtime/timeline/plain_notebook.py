"""A plain notebook (nbformat 4.5) of the cells that lead from a fresh kernel to a state."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kernel_runtime.errors import TimeTravelError
from kernel_runtime.timeline.cells import portable

_CELL_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")

CellData = Mapping[str, Any]


class CleanExportRefused(TimeTravelError):
    """A notebook was not written, or not tried out; no file was changed."""


def notebook_of(cells: Sequence[CellData]) -> dict[str, Any]:
    """The notebook of cells as docs/protocol.md writes them; those of time travel are left out.

    A cell that failed has the tag that lets nbclient go on after it. Raises CleanExportRefused if
    none is left.
    """
    used: set[str] = set()
    made = []
    for cell in cells:
        source = portable(cell["source"])
        if cell["kind"] != "cell" or not source.strip():
            continue
        id = str(cell["cell_id"] or "")
        if id in used or not _CELL_ID.fullmatch(id):
            id = uuid.uuid4().hex[:16]
        used.add(id)
        tags = {"tags": ["raises-exception"]} if cell["outcome"] == "error" else {}
        made.append(
            {
                "cell_type": "code",
                "execution_count": None,
                "id": id,
                "metadata": tags,
                "outputs": [],
                "source": source.splitlines(keepends=True),
            }
        )
    if not made:
        raise CleanExportRefused(
            "No cell has led from a fresh kernel to here, so there is nothing to write. Nothing "
            "was done."
        )
    return {
        "cells": made,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
