"""Timelines as text and as HTML, from the results of docs/protocol.md.

The HTML takes its colours from the front end's theme (JupyterLab's CSS variables, with fallbacks
that suit light and dark), holds no script, and shows all that came from a user as escaped text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from html import escape
from typing import Any, Final

from kernel_runtime.timeline.drawing import Row, rows
from kernel_runtime.timeline.model import first_line
from kernel_runtime.timeline.report import summary_text
from kernel_runtime.timeline.retention import out_of_order
from kernel_runtime.timeline.text import columns, one_line, pad, plural, size_text

Record = Mapping[str, Any]

ROWS_SHOWN: Final = 40
HEAD_SHOWN: Final = 8
VARIABLES_SHOWN: Final = 40
CELLS_SHOWN: Final = 40
OUTPUT_LINES: Final = 10
_CLOCK_WAS_OFF: Final = "the clock was off"
WHAT_WIDTH: Final = 64

_MUTED: Final = "color:var(--jp-ui-font-color2,inherit);opacity:.75"
_CELL: Final = "padding:1px 8px;text-align:left;white-space:nowrap;border:none"


def what(record: Record) -> str:
    """What a checkpoint is about: its comment, else the code of its cell, else its reason."""
    if record["comment"]:
        return f'"{one_line(record["comment"], WHAT_WIDTH - 2)}"'
    if record["code"]:
        return one_line(record["code"], WHAT_WIDTH)
    reasons = {
        "start": "the kernel started",
        "restart": "the kernel restarted",
        "part": "a part was restored",
    }
    return reasons.get(record["reason"], str(record["reason"]))


def marks(record: Record) -> list[str]:
    """What else is to be known of a checkpoint: label, pin, and what it does not hold."""
    found = []
    if record["label"]:
        found.append(f"[{one_line(record['label'], 40)}]")
    if record["pinned"]:
        found.append("pinned")
    if record["reason"] == "safety":
        found.append("safety")
    if record.get("effects"):
        found.append(plural(record["effects"], "effect"))
    process = _best(record, "process")
    durable = _best(record, "namespace")
    if durable == "ready":
        found.append("durable" + _partial(record))
    elif process != "ready":
        files = _best(record, "filesystem") == "ready"
        held = ", files only" if files else ", no files either"
        found.append(f"memory {process or 'not captured'}{held}")
    failed = [c for c in record["captures"] if c["kind"] == "filesystem" and c["state"] == "failed"]
    if failed and process == "ready":
        found.append("files not captured")
    lost = sum(
        len(_not_held(record, capture))
        for capture in record["captures"]
        if capture["kind"] != "namespace"
    )
    if tree := _tree(record):
        found.append(f"{_children(tree)}, paused {tree['pause_ms']:.0f} ms")
    if lost:
        found.append(f"{lost} not held")
    return found


def _tree(record: Record) -> Mapping[str, Any] | None:
    """The capture that holds child processes too."""
    held = ("pending", "ready")
    found = [c for c in record["captures"] if c.get("children") and c["state"] in held]
    return found[0] if found else None


def _children(capture: Mapping[str, Any]) -> str:
    return "1 child" if capture["children"] == 1 else f"{capture['children']} children"


def _not_held(record: Record, capture: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """What a capture does not hold, and none other does."""
    notes: Sequence[Mapping[str, Any]] = capture["not_captured"]
    more_is_held = capture["kind"] == "process" and not capture.get("children")
    return [] if more_is_held and _tree(record) else notes


def _partial(record: Record) -> str:
    """Which variables the copy on the disk is without."""
    names = [
        one_line(note["subject"], 30)
        for capture in record["captures"]
        if capture["kind"] == "namespace"
        for note in capture["not_captured"]
    ]
    more = " …" if len(names) > 4 else ""
    return f" without {', '.join(names[:4])}{more}" if names else ""


def clock(record: Record, now: datetime | None = None) -> str:
    """When it was made, in the kernel's local time; with the date if that is not today."""
    made = _made_at(record).astimezone()
    today = (now or datetime.now()).astimezone().date()
    return made.strftime("%H:%M:%S" if made.date() == today else "%Y-%m-%d %H:%M:%S")


def clock_notes(records: Sequence[Record], now: datetime | None = None) -> dict[str, str]:
    """By id, what is to be said of a time that cannot be right; records in order of number."""
    moments = [(record["id"], _made_at(record)) for record in records]
    return dict.fromkeys(out_of_order(moments, now or datetime.now(timezone.utc)), _CLOCK_WAS_OFF)


def _made_at(record: Record) -> datetime:
    return datetime.fromisoformat(record["created_at"])


def tree_text(listing: Mapping[str, Any], limit: int | None = ROWS_SHOWN) -> str:
    """The tree of a ``list`` result; of more than ``limit`` checkpoints the newest and the head."""
    drawn, by_id, older = _drawn(listing, limit)
    if not drawn:
        return "no checkpoints yet"
    width = max(columns(row.prefix) for row in drawn)
    numbers = max(len(f"#{by_id[row.id]['number']}") for row in drawn)
    lines = [_older(older)] if older else []
    odd = clock_notes(listing["checkpoints"])
    for row in drawn:
        record = by_id[row.id]
        line = f"{pad(row.prefix, width)} {pad('#' + str(record['number']), numbers)}  "
        told = [odd[row.id]] if row.id in odd else []
        line += "  ".join([clock(record), what(record), *told, *marks(record)])
        lines.append(line + ("  ← you are here" if row.is_head else ""))
    return "\n".join(lines)


def tree_html(listing: Mapping[str, Any], limit: int | None = ROWS_SHOWN) -> str:
    """The same as ``tree_text``, as a table."""
    drawn, by_id, older = _drawn(listing, limit)
    if not drawn:
        return "<p>no checkpoints yet</p>"
    body = []
    odd = clock_notes(listing["checkpoints"])
    for row in drawn:
        record = by_id[row.id]
        style = "" if row.on_present_branch else f' style="{_MUTED}"'
        if row.is_head:
            style = (
                ' style="background:var(--jp-layout-color2,rgba(128,128,128,.15));'
                'box-shadow:inset 3px 0 var(--jp-brand-color1,#2196f3)"'
            )
        told = [odd[row.id]] if row.id in odd else []
        marked = escape(" · ".join([*told, *marks(record)]))
        cells = [
            f'<td style="{_CELL};font-family:var(--jp-code-font-family,monospace);white-space:pre">'
            f"{escape(row.prefix)}</td>",
            f'<td style="{_CELL}"><b>#{int(record["number"])}</b></td>',
            f'<td style="{_CELL};{_MUTED}">{escape(clock(record))}</td>',
            f'<td style="{_CELL};{_font(record)}">{escape(what(record))}</td>',
            f'<td style="{_CELL};{_MUTED}">{marked}</td>',
        ]
        body.append(f"<tr{style}>{''.join(cells)}</tr>")
    head = f'<div style="{_MUTED};padding:1px 8px">{escape(_older(older))}</div>' if older else ""
    return (
        '<div style="max-height:28em;overflow:auto;color:var(--jp-ui-font-color1,inherit)">'
        f'{head}<table style="border-collapse:collapse;font-size:var(--jp-ui-font-size1,13px)">'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def table_text(listing: Mapping[str, Any]) -> str:
    """A flat list, one line for each checkpoint, oldest first."""
    lines = []
    for record in listing["checkpoints"]:
        mark = "*" if record["is_head"] else " "
        parts = [clock(record), record["reason"], what(record), *marks(record)]
        lines.append(f"{mark} #{record['number']}  {'  '.join(parts)}")
    return "\n".join(lines) or "no checkpoints"


def details_text(result: Mapping[str, Any]) -> str:
    """One checkpoint (a ``get`` result): what it is, what it holds and what it does not."""
    record = result["checkpoint"]
    coordinate = record["coordinate"]
    lines = [f"#{record['number']}  {what(record)}", f"  id          {record['id']}"]
    if record["label"]:
        lines.append(f"  label       {one_line(record['label'], 100)}")
    made = "made by itself" if record["is_auto"] else "asked for"
    if record["pinned"]:
        made += ", pinned"
    lines.append(f"  made        {clock(record)}, {made} ({record['reason']})")
    cells = result.get("cells") or []
    if record["code"] and not cells:  # of a kernel or a store that knows no more
        lines.append(
            f"  cell        [{coordinate['execution_count']}] {one_line(record['code'], 100)}"
        )
    for cell in cells[:CELLS_SHOWN]:
        lines.append(_cell_line(cell))
        lines += _output_lines(cell)
        lines += [f"    not undone: {one_line(one['text'], 160)}" for one in cell["effects"]]
    if len(cells) > CELLS_SHOWN:
        lines.append(f"    … and {plural(len(cells) - CELLS_SHOWN, 'cell')} more")
    lines += [_capture_line(capture) for capture in record["captures"]] or ["  holds       nothing"]
    for capture in record["captures"]:
        lines += [f"    not held: {note_text(note)}" for note in _not_held(record, capture)]
    variables = result["variables"]
    lines.append(f"  {plural(len(variables), 'variable')}")
    shown = sorted(variables)[:VARIABLES_SHOWN]
    lines += [f"    {one_line(name, 60)}  {summary_text(variables[name])}" for name in shown]
    if len(variables) > len(shown):
        lines.append(f"    … and {plural(len(variables) - len(shown), 'variable')} more")
    return "\n".join(lines)


def _cell_line(cell: Mapping[str, Any]) -> str:
    how = f"  → {cell['ename'] or cell['outcome']}" if cell["outcome"] != "ok" else ""
    code = one_line(first_line(cell["source"]), 100)
    return f"  cell        [{cell['execution_count']}] {code}{how}"


def _output_lines(cell: Mapping[str, Any]) -> list[str]:
    """What it printed and showed, in short."""
    printed = (cell.get("output") or "").splitlines()
    lines = [f"    │ {one_line(line, 100)}" for line in printed[:OUTPUT_LINES]]
    if len(printed) > OUTPUT_LINES:
        lines.append(f"    │ … and {plural(len(printed) - OUTPUT_LINES, 'line')} more")
    if cell.get("result"):
        lines.append(f"    = {one_line(cell['result'], 100)}")
    return lines


def note_text(note: Mapping[str, Any]) -> str:
    """One thing that a capture does not hold."""
    told = one_line(f"{note['kind']} {note['subject']}", 120)
    return f"{told}: {one_line(note['detail'], 200)}" if note["detail"] else told


def status_text(result: Mapping[str, Any]) -> str:
    """A ``status`` result."""
    head, memory, counts = result["head"], result["memory"], result["counts"]
    where = f"at #{head['number']} {what(head)}" if head else "no checkpoint yet"
    counted = ", ".join(f"{value} {key}" for key, value in counts.items())
    held = size_text(int(memory["frozen_bytes"]))
    budget = size_text(int(memory["budget_bytes"]))
    engines = ", ".join(f"{key}: {value or 'none'}" for key, value in result["engines"].items())
    lines = [
        where + (" (a cell is running)" if result["busy"] else ""),
        f"  checkpoints  {counted}",
        f"  memory       {held} held by frozen processes, of at most {budget}",
        f"  engines      {engines}",
        f"  workspace    {', '.join(one_line(str(p), 200) for p in result['workspace']) or 'none'}",
    ]
    environment = result.get("environment") or {}
    if covered := environment.get("covered"):
        layers = plural(int(environment["layers"]), "layer")
        lines.append(f"  environment  {', '.join(one_line(p, 60) for p in covered)} ({layers})")
    elif (problem := environment.get("problem")) and problem not in result["limits"]:
        lines.append(f"  environment  {one_line(problem, 300)}")
    if refused := environment.get("system_packages"):
        lines.append(f"  packages     {one_line(refused, 200)}")
    for path, why in sorted((environment.get("not_covered") or {}).items()):
        lines.append(f"  not covered  {one_line(path, 100)}: {one_line(why, 200)}")
    if store := result.get("store"):
        lines += _store_lines(store)
    tax = result.get("last_cow_tax_ms")
    if tax is not None:
        lines.append(f"  last cell    paid {float(tax):.1f} ms for pages that checkpoints share")
    lines += [f"  limit        {one_line(str(limit), 300)}" for limit in result["limits"]]
    lines.append("  " + config_text(result["config"]).replace("\n", "\n  "))
    return "\n".join(lines)


def _store_lines(store: Mapping[str, Any]) -> list[str]:
    """Where checkpoints are kept, under which locks, and how much room they may take."""
    if not store.get("directory"):
        return []
    journal = "WAL" if store["journal"] == "wal" else f"{store['journal']} journal"
    reach = "locks may not reach other machines" if store["is_network"] else "locks of this machine"
    kind = one_line(str(store["filesystem"]), 40) or "unknown filesystem"
    lines = [
        f"  store        {one_line(str(store['directory']), 200)} ({kind}: {journal}, {reach})"
    ]
    if store["bytes"] is not None or store["budget_bytes"]:
        known = store["bytes"] is not None
        taken = size_text(int(store["bytes"])) if known else "not weighed yet"
        most = size_text(int(store["budget_bytes"])) if store["budget_bytes"] else "any number"
        why = " (a share of the free disk)" if store["is_default"] else ""
        lines.append(
            f"  disk         {taken} for this notebook's checkpoints, of at most {most}{why}"
        )
    return lines


def outside_text(result: Mapping[str, Any], each: bool = False) -> str:
    """An ``outside`` result: what was written where this machine does not see it."""
    directories: Sequence[Mapping[str, Any]] = result["directories"]
    caches = result["caches"]
    files = sum(row["files"] for row in directories)
    size = sum(row["bytes"] for row in directories)
    if not directories and not caches["files"]:
        return "nothing: this machine has all that was written outside of the workspace"
    more = "" if result["complete"] else " or more"
    files += caches["files"] if each else 0
    size += caches["bytes"] if each else 0
    lines = [f"{plural(files, 'file')}{more} that this machine does not have ({size_text(size)})"]
    if each:
        marks = {"created": "+", "deleted": "-"}
        for one in result["files"]:
            sized = f"  {size_text(one['size'])}" if isinstance(one["size"], int) else ""
            lines.append(f"  {marks.get(one['kind'], '~')} {one_line(one['path'], 300)}{sized}")
    else:
        lines += [_directory_line(row) for row in directories]
    if caches["files"] and not each:
        lines.append(
            f"  caches: {plural(caches['files'], 'file')}, {size_text(int(caches['bytes']))}"
        )
    lines.append("%timetravel apply PATH copies files or directories to this machine.")
    return "\n".join(lines)


def _directory_line(row: Mapping[str, Any]) -> str:
    counted = [f"{plural(row['files'], 'file')}, {size_text(row['bytes'])}"] if row["files"] else []
    if row["deleted"]:
        counted.append(f"{row['deleted']:,} deleted")
    names = ", ".join(one_line(name, 60) for name in row["names"])
    path = one_line(str(row["path"]).rstrip("/"), 200)
    return f"  {path}/  {', '.join(counted)}" + (f": {names}" if names else "")


def config_text(config: Mapping[str, Any]) -> str:
    """Options as they are given to ``%timetravel config``."""
    return "\n".join(f"{key}={value}" for key, value in config.items())


def checkpoint_text(record: Record, took_ms: float, problem: str = "") -> str:
    """What ``%checkpoint`` answers: the number, and what is not held."""
    named = f' "{one_line(record["comment"], WHAT_WIDTH)}"' if record["comment"] else ""
    named += f" [{one_line(record['label'], 40)}]" if record["label"] else ""
    lines = [f"checkpoint #{record['number']}{named} ({took_ms:.1f} ms)"]
    if tree := _tree(record):
        lines.append(f"  with {_children(tree)}; for them it paused {tree['pause_ms']:.0f} ms")
    for capture in record["captures"]:
        if capture["state"] == "failed":
            lines.append(
                f"  {capture['kind']} not captured: {one_line(str(capture['error']), 300)}"
            )
        notes = _not_held(record, capture)
        lines += [f"  not held: {note_text(note)}" for note in notes[:8]]
        if len(notes) > 8:
            lines.append(f"  … and {len(notes) - 8} more: %timeline {record['number']}")
    if problem:
        lines.append(f"  it ends with this kernel: {one_line(problem, 300)}")
    return "\n".join(lines)


def _drawn(
    listing: Mapping[str, Any], limit: int | None
) -> tuple[list[Row], dict[str, Record], int]:
    records: list[Record] = list(listing["checkpoints"])
    parents: Mapping[str, str | None] = listing["parents"]
    wanted = {record["id"] for record in (records if limit is None else records[-limit:])}
    # However old the head is: where the session is must be seen, and what led there.
    at = listing["head"]
    for _ in range(HEAD_SHOWN):
        if at is None:
            break
        wanted.add(at)
        at = parents.get(at)
    by_id = {record["id"]: record for record in records if record["id"] in wanted}
    return rows(list(by_id), parents, listing["head"]), by_id, len(records) - len(by_id)


def _older(count: int) -> str:
    return f"… {count:,} more: %timeline --all"


def _font(record: Record) -> str:
    is_code = record["code"] and not record["comment"]
    return "font-family:var(--jp-code-font-family,monospace)" if is_code else ""


def _best(record: Record, kind: str) -> str | None:
    """The best state among the captures of a kind."""
    order = ("ready", "pending", "evicted", "failed")
    states = [capture["state"] for capture in record["captures"] if capture["kind"] == kind]
    return min(states, key=order.index, default=None)


def _capture_line(capture: Mapping[str, Any]) -> str:
    size = f", {size_text(capture['bytes'])}" if capture["bytes"] else ""
    why = f": {one_line(str(capture['error']), 200)}" if capture["error"] else ""
    verified = f", verified {capture['verified_at'][:16]}" if capture.get("verified_at") else ""
    held = ""
    if capture.get("children"):
        held = f", with {_children(capture)}, paused {capture['pause_ms']:.0f} ms"
    state = f"{capture['engine']}, {capture['state']}{size}{held}{verified}{why}"
    return f"  {pad(capture['kind'], 10)}  {state}"
