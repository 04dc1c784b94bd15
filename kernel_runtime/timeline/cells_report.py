"""Effects, compensations and replays in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kernel_runtime.timeline.text import one_line, plural

if TYPE_CHECKING:
    from kernel_runtime.timeline.cells import Placed

EFFECTS_SHOWN: Final = 8
CELLS_SHOWN: Final = 20
Row = Mapping[str, Any]


def effect_lines(effects: Sequence[Row], head: str = "cannot be undone") -> list[str]:
    """What reached other machines line by line; what stayed within this one as one line."""
    outward = [one for one in effects if not one["local"]]
    local = [one for one in effects if one["local"]]
    lines = [f"  {head}: {_effect(one)}" for one in outward[:EFFECTS_SHOWN]]
    if more := len(outward) - EFFECTS_SHOWN:
        lines += [f"  {head}: {more:,} more, which %timeline N lists"] if more > 0 else []
    if local:
        shown = "; ".join(_effect(one) for one in local[:3])
        rest = f" and {len(local) - 3:,} more" if len(local) > 3 else ""
        lines.append(f"  within this machine: {shown}{rest}")
    return lines


def _effect(one: Row) -> str:
    return f"{one_line(str(one['text']), 200)} (cell {one['cell']})"


def compensation_lines(compensations: Sequence[Row], number: int, dry_run: bool) -> list[str]:
    """How each went; of those that were not run, how to run them."""
    lines = []
    for one in compensations:
        text, cell = one_line(str(one["text"]), 120), one["cell"]
        if one["outcome"] == "ok":
            lines.append(f"  compensated: {text} (cell {cell})")
        elif one["outcome"] == "gone":
            lines.append(f"  not compensated: {text} (cell {cell}): {one['error']}")
        elif one["outcome"] == "error":
            why = one_line(str(one["error"]), 200)
            lines.append(f"  compensation failed: {text} (cell {cell}): {why}")
    waiting = [one for one in compensations if one["outcome"] in ("not run", "error")]
    if waiting:
        names = ", ".join(one_line(str(one["text"]), 60) for one in waiting[:4])
        names += f" and {len(waiting) - 4:,} more" if len(waiting) > 4 else ""
        how = (
            "--compensate runs them first"
            if dry_run
            else f"%restore --undo, then %restore {number} --compensate runs them"
        )
        lines.append(f"  {plural(len(waiting), 'compensation')} not run: {names}; {how}")
    return lines


def left_lines(result: Row) -> list[str]:
    """Effects and compensations of a restore result."""
    number = int(result["checkpoint"]["number"])
    return [
        *effect_lines(result.get("effects") or ()),
        *compensation_lines(result.get("compensations") or (), number, bool(result.get("dry_run"))),
    ]


def replay_step_text(number: int, of: int, placed: Placed) -> str:
    """The line above a cell that is run again."""
    code = placed.cell.source.strip().splitlines()[0]
    return f"── replay {number}/{of}: {placed.name} {one_line(code, 60)}"


def replay_text(result: Row) -> str:
    """What a replay did, or would do."""
    name = f"#{result['checkpoint']['number']}"
    done: Sequence[Row] = result["cells"]
    rest: Sequence[Row] = result["not_run"]
    if result["dry_run"]:
        lines = [f"replaying from {name} would run {plural(len(rest), 'cell')} again:"]
        lines += _rows(rest)
        lines += effect_lines(result["effects"], "may happen again")
        return "\n".join([*lines, "Nothing was run."])
    differing = [row for row in done if row["difference"] is not None]
    came = "all as before" if not differing else f"{len(differing):,} differently"
    lines = [
        f"replayed {plural(len(done), 'cell')} from {name}, {came} ({result['took_ms']:.0f} ms)"
    ]
    lines += [
        f"  {row['cell']} {one_line(row['code'], 50)}: {one_line(row['difference'], 200)}"
        for row in differing[:CELLS_SHOWN]
    ]
    why = {
        "difference": "stopped at the first difference",
        "interrupted": "stopped, since it was interrupted",
        "died": "stopped, since the process died",
    }.get(result["stopped"] or "")
    if why:
        lines.append(f"{why}; {plural(len(rest), 'cell')} not run" + (":" if rest else ""))
        lines += _rows(rest)
    restored = result["restored"]
    if restored and restored.get("safety"):
        lines.append(f"%restore {restored['safety']['number']} goes back to before the replay.")
    return "\n".join(lines)


def _rows(rows: Sequence[Row]) -> list[str]:
    lines = [f"  {row['cell']}  {one_line(row['code'], 70)}" for row in rows[:CELLS_SHOWN]]
    more = len(rows) - CELLS_SHOWN
    return [*lines, f"  … and {plural(more, 'cell')} more"] if more > 0 else lines
