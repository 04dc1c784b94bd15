"""Cells that ran, what they did that no rollback undoes, and which of them lead where. Pure.

A cell hangs on the checkpoint that was made after it: a path through the tree of checkpoints is
also the list of the cells that were run along it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from kernel_runtime.errors import BadRequest
from kernel_runtime.later import dataclass
from kernel_runtime.timeline.text import one_line

if TYPE_CHECKING:
    from kernel_runtime.timeline.model import Checkpoint
    from kernel_runtime.timeline.tree import Timeline

Outcome = Literal["ok", "error", "aborted"]
Kind = Literal["cell", "compensation"]

RESULT_LENGTH: Final = 4000
"""Characters of a result that are kept, to be compared by a replay."""

OUTPUT_LENGTH: Final = 20_000
"""Characters of what a cell printed that are kept: the first."""

_WORDS: Final = {
    "connection": "connected to",
    "datagram": "sent to",
    "request": "requested",
    "mail": "sent mail through",
    "program": "started",
    "file": "wrote",
    "deleted": "deleted",
    "moved": "moved",
    "browser": "opened in a browser",
    "log": "wrote to the system's log:",
    "more": "and",
}


@dataclass(frozen=True)
class Effect:
    """Something that a cell did to the world outside of the session.

    ``at``: when first, in seconds since the epoch. ``local``: within this machine (loopback, a
    Unix socket).
    """

    kind: str
    subject: str
    count: int
    at: float
    local: bool = False

    @property
    def text(self) -> str:
        """``connected to api.example.com:443 (3 times)``."""
        word = _WORDS.get(self.kind, self.kind)
        times = f" ({self.count:,} times)" if self.count > 1 and self.kind != "more" else ""
        return f"{word} {one_line(self.subject, 160)}{times}"


@dataclass(frozen=True)
class Compensation:
    """An undo that a cell registered for an effect of its own; ``text`` is the call."""

    id: str
    text: str


@dataclass(frozen=True)
class Cell:
    """One cell that ran to its end.

    ``before`` is the checkpoint that the session was at when it began (None: there was none).
    ``result`` is the text that the cell showed as its result, up to RESULT_LENGTH characters;
    ``output`` what it printed, on both streams, and the name and text of its error.
    A cell of kind ``compensation`` is an undo that was run by a restore: ``source`` is its text,
    ``id`` that of the Compensation.
    """

    id: str
    source: str
    cell_id: str | None
    execution_count: int
    outcome: Outcome
    ename: str | None
    started_at: float
    duration_s: float
    before: str | None = None
    result: str | None = None
    kind: Kind = "cell"
    effects: tuple[Effect, ...] = ()
    compensations: tuple[Compensation, ...] = field(default=())
    output: str = ""

    @property
    def failed_as(self) -> str:
        """The outcome in a word: ``ok``, ``aborted``, or the name of the error."""
        return self.ename or self.outcome


@dataclass(frozen=True)
class Placed:
    """A cell with the checkpoint that holds its state; None while there is none yet."""

    cell: Cell
    checkpoint: Checkpoint | None

    @property
    def name(self) -> str:
        """``#5``, or ``[7]`` by its execution count where no checkpoint was made yet."""
        if self.checkpoint is not None:
            return f"#{self.checkpoint.number}"
        return f"[{self.cell.execution_count}]"

    def record(self, *, output: bool = False) -> dict[str, Any]:
        """As docs/protocol.md writes it. output: with what it printed, which may be long."""
        cell = self.cell
        known = {f: getattr(cell, f) for f in _PLAIN}
        return {
            **known,
            "checkpoint": self.checkpoint.id if self.checkpoint else None,
            "number": self.checkpoint.number if self.checkpoint else None,
            "effects": [effect_record(effect, self) for effect in cell.effects],
            "compensations": [asdict(one) for one in cell.compensations],
            "output": cell.output if output else None,
        }


_PLAIN: Final = (
    "id", "kind", "source", "cell_id", "execution_count", "outcome", "ename", "started_at",
    "duration_s", "before", "result",
)  # fmt: skip


def effect_record(effect: Effect, placed: Placed) -> dict[str, Any]:
    """An effect as docs/protocol.md writes it: with the name of its cell."""
    return {**asdict(effect), "cell": placed.name, "text": effect.text}


def count_effects(cells: Iterable[Cell]) -> int:
    """How many different effects they had."""
    return sum(len(cell.effects) for cell in cells)


# -- paths ------------------------------------------------------------------------------------


def along(timeline: Timeline, since: str | None, until: str | None) -> Iterator[Placed]:
    """The cells after ``since`` up to ``until``, in order. None: from the root; nowhere.

    Raises BadRequest if ``until`` does not descend from ``since``.
    """
    if until is None:
        return
    line = [*timeline.history(until), until]
    if since is not None:
        if since not in line:
            a, b = timeline[since].number, timeline[until].number
            raise BadRequest(
                f"#{b} does not descend from #{a}, so no cells lead from one to the other. "
                "Nothing was done; %timeline shows the tree."
            )
        line = line[line.index(since) + 1 :]
    for id in line:
        for cell in timeline[id].cells:
            yield Placed(cell, timeline[id])


def left_behind(timeline: Timeline, at: str | None, target: str) -> list[Placed]:
    """The cells that a session at ``at`` leaves behind when it goes to ``target``, in order."""
    if at is None:
        return []
    kept = {*timeline.history(target), target}
    line = [id for id in (*timeline.history(at), at) if id not in kept]
    return [Placed(cell, timeline[id]) for id in line for cell in timeline[id].cells]


def from_fresh(timeline: Timeline, until: str | None) -> list[Placed]:
    """The cells that lead from the last fresh process to ``until``, in order."""
    if until is None:
        return []
    line = [*timeline.history(until), until]
    starts = [n for n, id in enumerate(line) if timeline[id].reason in ("start", "restart")]
    # cells that hang on the start itself ran in the process before it
    line = line[starts[-1] + 1 :] if starts else line
    return [Placed(cell, timeline[id]) for id in line for cell in timeline[id].cells]


# -- sources ----------------------------------------------------------------------------------

_LEAVES: Final = re.compile(r"(\s*)%(?:restore|replay)\b")
_OURS: Final = re.compile(
    r"(\s*)%(?:(?:checkpoint|timeline|timetravel)\b|(?:re)?load_ext\s+jupyter_timetravel\b)"
)
_TRIAL: Final = re.compile(r"\s*%%(?:dryrun|transaction)\b[^\n]*(?:\n|\Z)")


def runnable(source: str) -> str:
    """What of a cell can be run again: without ``%restore``, ``%replay`` and what follows them.

    Such a line ended the cell. Empty if nothing but time travel is left.
    """
    return _without(source, portable=False)


def portable(source: str) -> str:
    """What of a cell a stock kernel understands: without the magics of time travel."""
    return _without(_TRIAL.sub("", source, count=1), portable=True)


def _without(source: str, *, portable: bool) -> str:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        pass
    else:
        return source  # there is no magic in it; a text may hold a line that looks like one
    lines: list[str] = []
    left_out = False
    for line in source.splitlines():
        if found := _LEAVES.match(line):
            if found[1]:
                lines.append(f"{found[1]}pass")  # under a condition that did not hold, perhaps
                continue
            left_out = True
            break
        if found := _OURS.match(line):
            left_out = True
            if portable:
                lines += [f"{found[1]}pass"] if found[1] else []
                continue
        lines.append(line)
    if left_out and not any(line.strip() and not _OURS.match(line) for line in lines):
        return ""
    return "\n".join(lines).strip("\n") if lines else ""


_ADDRESS: Final = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")


def difference(before: Cell, after: Cell) -> str | None:
    """How a cell came out differently when it ran again; None if it did not, as far as is seen."""
    if before.failed_as != after.failed_as:
        return f"{before.failed_as} before, {after.failed_as} now"
    if _comparable(before.result) != _comparable(after.result):
        shown = [one_line(text, 40) if text else "none" for text in (before.result, after.result)]
        return f"its result was {shown[0]}, and is {shown[1]} now"
    return None


def _comparable(result: str | None) -> str | None:
    """Addresses differ between processes and mean nothing."""
    return None if result is None else _ADDRESS.sub("0x…", result)


# -- the store's form ---------------------------------------------------------------------------


def pack(cell: Cell) -> dict[str, Any]:
    """A cell as plain JSON, without its source."""
    data = asdict(cell)
    del data["source"]
    return data


def unpack(data: Mapping[str, Any], source: str) -> Cell:
    """The reverse of ``pack``."""
    plain = dict(data)
    plain["effects"] = tuple(Effect(**one) for one in plain["effects"])
    plain["compensations"] = tuple(Compensation(**one) for one in plain["compensations"])
    return Cell(source=source, **plain)


def with_effects(cell: Cell, report: Mapping[str, Any]) -> Cell:
    """The cell with what the executor reported of it."""
    return replace(
        cell,
        effects=(*cell.effects, *(Effect(*one) for one in report["effects"])),
        compensations=(
            *cell.compensations,
            *(Compensation(*one) for one in report["compensations"]),
        ),
    )
