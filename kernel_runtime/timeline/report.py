"""The words in which a restore, or what it would do, is told, from a result of docs/protocol.md.

Plain text for a notebook's stream output and a terminal. Nothing in it comes from the user
without its control characters made visible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kernel_runtime.timeline.text import one_line, plural, size_text

NAMES_SHOWN: Final = 4
ROWS_SHOWN: Final = 20
TAKES_BACK: Final = "%restore -2 takes back the last cell."


def title(record: Mapping[str, Any]) -> str:
    """``#12 "before the join"``: how a checkpoint is called in a sentence."""
    label = record.get("label")
    name = label or record.get("comment") or ""
    return f"#{record['number']}" + (f' "{one_line(str(name), 60)}"' if name else "")


def restore_text(result: Mapping[str, Any]) -> str:
    """What a restore did: one line of sums, the first names, then what was not brought back."""
    if result.get("dry_run"):
        return dry_run_text(result)
    variables, files = _variables(result), _files(result)
    head = f"restored {title(result['checkpoint'])}"
    parts = _sums(variables, files)
    threads = result.get("threads") or {}
    if threads.get("brought_back"):
        parts.append(plural(int(threads["brought_back"]), "thread"))
    if not any(variables.values()) and not files:
        parts.append("nothing differed")
    lines = [f"{head}: {', '.join(parts)} ({float(result['took_ms']):.1f} ms)"]
    lines += _names("variables", variables)
    lines += _file_names(files)
    lines += _kept_aside(result)
    lines += [f"warning: {one_line(str(text), 1000)}" for text in result.get("warnings") or ()]
    safety = result.get("safety")
    if safety:
        lines.append(f"%restore --undo goes back to where you were (#{safety['number']}).")
    if not any(variables.values()) and not files:
        lines.append(TAKES_BACK)
    return "\n".join(lines)


def dry_run_text(result: Mapping[str, Any]) -> str:
    """What a restore would do: every variable and file with its sizes, up to a screenful."""
    variables, files = _variables(result), _files(result)
    target = title(result["checkpoint"])
    if not any(variables.values()) and not files:
        return f"restoring {target} would change nothing that is known. {TAKES_BACK}"
    lines = [f"restoring {target} would change {', '.join(_sums(variables, files))}:"]
    rows = [f"  + {_summary_row(v)}" for v in variables["added"]]
    rows += [f"  - {_summary_row(v)}" for v in variables["removed"]]
    rows += [f"  ~ {_changed_row(v)}" for v in variables["changed"]]
    lines += _cut(rows, "variable")
    lines += _cut([f"  {_change_row(change)}" for change in files], "file")
    lines += [f"warning: {one_line(str(text), 1000)}" for text in result.get("warnings") or ()]
    lines.append("Nothing was changed.")
    return "\n".join(lines)


def diff_text(a: str, b: str, result: Mapping[str, Any]) -> str:
    """What happened from one checkpoint to another; ``a`` and ``b`` are their names."""
    variables, files = _variables(result), _files(result)
    if not any(variables.values()) and not files:
        return f"no difference from {a} to {b} that the checkpoints know of"
    lines = [f"from {a} to {b}: {', '.join(_sums(variables, files))}"]
    rows = [f"  + {_summary_row(v)}" for v in variables["added"]]
    rows += [f"  - {_summary_row(v)}" for v in variables["removed"]]
    rows += [f"  ~ {_changed_row(v)}" for v in variables["changed"]]
    return "\n".join(
        lines + _cut(rows, "variable") + _cut([f"  {_change_row(c)}" for c in files], "file")
    )


def _variables(result: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    given = result.get("variables") or {}
    return {key: list(given.get(key) or ()) for key in ("added", "removed", "changed")}


def _files(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(result.get("files") or ())


def _sums(
    variables: Mapping[str, Sequence[Mapping[str, Any]]], files: Sequence[Mapping[str, Any]]
) -> list[str]:
    parts = []
    if count := sum(len(group) for group in variables.values()):
        parts.append(plural(count, "variable"))
    if files:
        parts.append(plural(len(files), "file"))
    return parts


def _names(what: str, groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    words = {"added": "back", "removed": "gone", "changed": "as before"}
    told = [
        f"{words[key]}: {_first(str(item['name']) for item in group)}"
        for key, group in groups.items()
        if group
    ]
    return [f"  {what} {'; '.join(told)}"] if told else []


def _file_names(files: Sequence[Mapping[str, Any]]) -> list[str]:
    words = {"created": "back", "deleted": "gone"}
    groups: dict[str, list[str]] = {}
    for change in files:
        word = words.get(str(change["kind"]), "as before")
        groups.setdefault(word, []).append(str(change["path"]))
    told = [f"{word}: {_first(paths)}" for word, paths in groups.items()]
    return [f"  files {'; '.join(told)}"] if told else []


def _first(names: Any) -> str:
    listed = [one_line(name, 60) for name in names]
    more = len(listed) - NAMES_SHOWN
    return ", ".join(listed[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _kept_aside(result: Mapping[str, Any]) -> list[str]:
    kept: Sequence[Mapping[str, Any]] = result.get("kept_aside") or ()
    rows = [
        f"  kept aside: {one_line(str(item['path']), 200)}: {one_line(str(item['reason']), 200)}; "
        f"it is in the store as {one_line(str(item['saved_as']), 200)}"
        for item in kept
    ]
    return _cut(rows, "file")


def _cut(rows: list[str], what: str) -> list[str]:
    more = len(rows) - ROWS_SHOWN
    return rows if more <= 0 else [*rows[:ROWS_SHOWN], f"  … and {plural(more, what)} more"]


def _summary_row(item: Mapping[str, Any]) -> str:
    return f"{one_line(str(item['name']), 60)}  {summary_text(item)}"


def _changed_row(item: Mapping[str, Any]) -> str:
    before, after = summary_text(item["before"]), summary_text(item["after"])
    told = f"{before} → {after}" if before != after else f"{after} (its content differs)"
    return f"{one_line(str(item['name']), 60)}  {told}"


def summary_text(summary: Mapping[str, Any]) -> str:
    """``DataFrame 1000 x 3, 24.0 kB`` or ``int 7``."""
    words = [one_line(str(summary.get("type") or "?"), 60)]
    if summary.get("shape"):
        words.append(one_line(str(summary["shape"]), 60))
    if summary.get("value") is not None:
        words.append(one_line(str(summary["value"]), 60))
    size = summary.get("size")
    told = " ".join(words)
    return f"{told}, {size_text(size)}" if isinstance(size, int) and size >= 1000 else told


def _change_row(change: Mapping[str, Any]) -> str:
    marks = {"created": "+", "deleted": "-"}
    mark = marks.get(str(change["kind"]), "~")
    before, after = change.get("size_before"), change.get("size_after")
    sizes = " → ".join(size_text(s) for s in (before, after) if isinstance(s, int))
    kind = "" if mark != "~" or change["kind"] == "changed" else f"{change['kind']} "
    return f"{mark} {one_line(str(change['path']), 200)}  {kind}{sizes}".rstrip()
