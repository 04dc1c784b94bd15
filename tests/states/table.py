"""The table of outcomes in docs/engines.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.states.suite import NOT_TRIED, WAYS, programs

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "engines.md"
BEGIN: Final = "<!-- states: written by scripts/statestable.py -->\n"
END: Final = "<!-- end of states -->\n"
HOW: Final = "docs/engines.md says otherwise: run scripts/statestable.py"


def _rows() -> list[list[str]]:
    text = PAGE.read_text()
    body = text.partition(BEGIN)[2].partition(END)[0]
    return [[cell.strip() for cell in row.strip("|\n").split("|")] for row in body.splitlines()]


def column(engine: str) -> dict[str, str]:
    """What the page says of an engine: an outcome for each program's name."""
    rows = _rows()
    if not rows or engine not in rows[0]:
        return {}
    at = rows[0].index(engine)
    return {row[0].strip("`"): row[at] for row in rows[2:]}


def write(found: Mapping[str, Mapping[str, str]]) -> None:
    """Put columns into the page; those of other engines stay as they are."""
    columns = {engine: {**column(engine), **found.get(engine, {})} for engine in WAYS}
    columns = {engine: rows for engine, rows in columns.items() if rows}
    lines = [
        f"| program | state | {' | '.join(columns)} |",
        f"| --- | --- |{' --- |' * len(columns)}",
    ]
    for program in sorted(programs(), key=lambda program: program.name):
        cells = [columns[engine].get(program.name, NOT_TRIED) for engine in columns]
        about = program.about.rstrip(".").replace("|", "\\|")
        lines.append(f"| `{program.name}` | {about} | {' | '.join(cells)} |")
    head, _, rest = PAGE.read_text().partition(BEGIN)
    tail = rest.partition(END)[2]
    PAGE.write_text(head + BEGIN + "\n".join(lines) + "\n" + END + tail)
