"""The words in which a restore, or what it would do, is told, from a result of docs/protocol.md.

Plain text for a notebook's stream output and a terminal. Nothing in it comes from the user
without its control characters made visible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kernel_runtime.timeline.caches import is_cache
from kernel_runtime.timeline.cells_report import left_lines
from kernel_runtime.timeline.text import one_line, plural, size_text

NAMES_SHOWN: Final = 4
ROWS_SHOWN: Final = 20
PACKAGES_SHOWN: Final = 12
TAKES_BACK: Final = "%restore -2 takes back the last cell."
_APPLY_MARKS: Final = {"created": "+", "deleted": "-"}
_ENVIRONMENT_MARKS: Final = {"created": "+", "deleted": "-"}


def title(record: Mapping[str, Any]) -> str:
    """``#12 "before the join"``: how a checkpoint is called in a sentence."""
    label = record.get("label")
    name = label or record.get("comment") or ""
    return f"#{record['number']}" + (f' "{one_line(str(name), 60)}"' if name else "")


_FROM: Final[Mapping[Any, str]] = {
    "image": ", the process from its image on the disk",
    "criu": ", the process from CRIU's image on the disk",
    "dill": ", the variables from their copy on the disk",
}
"""By engine; nothing where it was held in memory, or is always on the disk."""


def restore_text(result: Mapping[str, Any]) -> str:
    """What a restore did: one line of sums, the first names, then what was not brought back."""
    if result.get("dry_run"):
        return dry_run_text(result)
    parts = _sums(result)
    threads = result.get("threads") or {}
    if threads.get("brought_back"):
        parts.append(plural(int(threads["brought_back"]), "thread"))
    if is_nothing(result):
        parts.append("nothing differed")
    head = f"restored {title(result['checkpoint'])}"
    how = f"{float(result['took_ms']):.1f} ms{_FROM.get(result.get('process'), '')}"
    lines = [f"{head}: {', '.join(parts)} ({how})"]
    lines += _names("variables", _variables(result))
    lines += _file_names(_files(result))
    lines += environment_lines(result)
    lines += _environ_names(result)
    lines += _kept_aside(result)
    lines += left_lines(result)
    if result.get("reseeded"):
        lines.append(f"seeded anew: {', '.join(map(str, result['reseeded']))}")
    lines += _warnings(result)
    safety = result.get("safety")
    if safety:
        lines.append(f"%restore --undo goes back to where you were (#{safety['number']}).")
    if is_nothing(result):
        lines.append(TAKES_BACK)
    return "\n".join(lines)


def dry_run_text(result: Mapping[str, Any]) -> str:
    """What a restore would do: every variable and file with its sizes, up to a screenful."""
    target = title(result["checkpoint"])
    if is_nothing(result):
        line = f"restoring {target} would change nothing that is known. {TAKES_BACK}"
        return "\n".join([line, *left_lines(result)])
    lines = [f"restoring {target} would change {', '.join(_sums(result))}:"]
    lines += difference_lines(result)
    lines += left_lines(result)
    lines += _warnings(result)
    lines.append("Nothing was changed.")
    return "\n".join(lines)


def diff_text(a: str, b: str, result: Mapping[str, Any]) -> str:
    """What happened from one checkpoint to another; ``a`` and ``b`` are their names."""
    if is_nothing(result):
        return f"no difference from {a} to {b} that the checkpoints know of"
    lines = [f"from {a} to {b}: {', '.join(_sums(result))}"]
    return "\n".join(lines + difference_lines(result))


def trial_text(what: str, result: Mapping[str, Any]) -> str:
    """What a cell did that was taken back; ``result`` is that of the restore which did so."""
    did = reversed_differences(result)
    took = f"({float(result['took_ms']):.1f} ms)"
    sums = "nothing that is known" if is_nothing(did) else ", ".join(_sums(did))
    lines = [f"{what} {sums}"]
    if not is_nothing(did):
        lines[0] += ":"
        lines += difference_lines(did)
    lines.append(f"All of it was taken back {took}; %restore --undo brings it again.")
    return "\n".join(lines + _kept_aside(result) + left_lines(result) + _warnings(result))


def reset_text(result: Mapping[str, Any]) -> str:
    """What ``%timetravel reset`` did, and how to undo it."""
    head = "the environment is clean again"
    if result.get("process"):
        head += ", in a fresh process"
    parts = _sums(result)
    head += f": {', '.join(parts)}" if parts else ": it was clean before"
    lines = [f"{head} ({float(result['took_ms']):.1f} ms)", *environment_lines(result)]
    lines += _file_names(_files(result))
    if not result.get("process"):
        lines.append("Memory is as it was; %timetravel reset --process begins a fresh process too.")
    lines.append(f"%restore --undo takes the reset back (#{result['safety']['number']}).")
    return "\n".join(lines)


def apply_text(result: Mapping[str, Any]) -> str:
    """What ``%timetravel apply`` did, or would do."""
    done: Sequence[Mapping[str, Any]] = result["done"]
    if not done:
        return "nothing to copy: this machine has all of it"
    counts: dict[str, int] = {}
    for one in done:
        counts[str(one["action"])] = counts.get(str(one["action"]), 0) + 1
    sums = ", ".join(f"{count:,} {action}" for action, count in sorted(counts.items()))
    head = "would be copied to this machine" if result["dry_run"] else "copied to this machine"
    rows = [
        f"  {_APPLY_MARKS.get(str(one['action']), '~')} {one_line(str(one['path']), 200)}"
        + (f"  {one_line(str(one['note']), 200)}" if one["note"] else "")
        for one in done
    ]
    lines = [f"{head}: {sums} ({size_text(int(result['bytes']))})", *_cut(rows, "path")]
    if result["dry_run"]:
        lines.append("Nothing was copied.")
    return "\n".join(lines)


def difference_lines(result: Mapping[str, Any]) -> list[str]:
    """Every variable, file and package, up to a screenful; environment files by their sums."""
    variables = _variables(result)
    rows = [f"  + {_summary_row(v)}" for v in variables["added"]]
    rows += [f"  - {_summary_row(v)}" for v in variables["removed"]]
    rows += [f"  ~ {_changed_row(v)}" for v in variables["changed"]]
    lines = _cut(rows, "variable")
    lines += _cut([f"  {_change_row(change)}" for change in _files(result)], "file")
    lines += environment_lines(result)
    return lines + _cut([f"  ~ {_environ_row(one)}" for one in _environ(result)], "variable")


def is_nothing(result: Mapping[str, Any]) -> bool:
    """Whether nothing differs that is known."""
    return not (
        any(_variables(result).values())
        or _files(result)
        or result.get("packages")
        or result.get("environment")
        or result.get("environment_differs")
        or _environ(result)
    )


def reversed_differences(result: Mapping[str, Any]) -> dict[str, Any]:
    """The same differences, told in the other direction."""
    variables = _variables(result)
    kinds = {"created": "deleted", "deleted": "created"}

    def swapped(item: Mapping[str, Any]) -> dict[str, Any]:
        return {**item, "before": item["after"], "after": item["before"]}

    def undone(change: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **change,
            "kind": kinds.get(str(change["kind"]), change["kind"]),
            "size_before": change.get("size_after"),
            "size_after": change.get("size_before"),
        }

    return {
        **result,
        "variables": {
            "added": variables["removed"],
            "removed": variables["added"],
            "changed": [swapped(item) for item in variables["changed"]],
        },
        "files": [undone(change) for change in _files(result)],
        "packages": [swapped(one) for one in result.get("packages") or ()],
        "environment": [undone(change) for change in result.get("environment") or ()],
        "environ": [swapped(one) for one in _environ(result)],
    }


def package_text(package: Mapping[str, Any]) -> str:
    """``numpy 2.4.6 → 1.26.4``, ``+ pandas 2.2`` or ``- requests 2.31``."""
    name, before, after = (package.get(key) for key in ("name", "before", "after"))
    name = one_line(str(name), 60)
    if before is None:
        return f"+ {name} {one_line(str(after), 40)}"
    if after is None:
        return f"- {name} {one_line(str(before), 40)}"
    return f"{name} {one_line(str(before), 40)} → {one_line(str(after), 40)}"


def environment_lines(result: Mapping[str, Any]) -> list[str]:
    """Packages by name, files outside of the workspace by counts and first names."""
    packages: Sequence[Mapping[str, Any]] = result.get("packages") or ()
    lines = []
    if packages:
        shown = ", ".join(map(package_text, packages[:PACKAGES_SHOWN]))
        more = len(packages) - PACKAGES_SHOWN
        lines.append(f"  packages {shown}" + (f" and {more:,} more" if more > 0 else ""))
    named, caches = _environment(result)
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for change in named:
        groups.setdefault(_ENVIRONMENT_MARKS.get(str(change["kind"]), "~"), []).append(change)
    places = {str(package.get("where") or "") for package in packages} - {""}
    told = []
    for mark in sorted(groups, key="+~-".index):
        # what no package brought is what somebody may want to know of
        paths = sorted(
            map(absolute, groups[mark]), key=lambda path: (_is_below(path, places), path)
        )
        told.append(f"{mark} {_first(paths, 120)}")
    if told:
        lines.append(f"  outside of the workspace {'; '.join(told)}")
    if caches and not named:
        lines.append(f"  caches {_first(sorted(map(absolute, caches)), 120)}")
    return lines


def absolute(change: Mapping[str, Any]) -> str:
    """The absolute path of a change."""
    return f"{str(change['root']).rstrip('/')}/{change['path']}"


def _is_below(path: str, places: Iterable[str]) -> bool:
    return any(path.startswith(place.rstrip("/") + "/") for place in places)


def _variables(result: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    given = result.get("variables") or {}
    return {key: list(given.get(key) or ()) for key in ("added", "removed", "changed")}


def _files(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(result.get("files") or ())


def _environment(
    result: Mapping[str, Any],
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Files outside of the workspace: those that are named, and caches."""
    groups: tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]] = ([], [])
    for change in result.get("environment") or ():
        groups[is_cache(absolute(change))].append(change)
    return groups


def _environ(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(result.get("environ") or ())


def _sums(result: Mapping[str, Any]) -> list[str]:
    parts = []
    if count := sum(len(group) for group in _variables(result).values()):
        parts.append(plural(count, "variable"))
    if files := _files(result):
        parts.append(plural(len(files), "file"))
    if packages := result.get("packages"):
        parts.append(plural(len(packages), "package"))
    named, caches = _environment(result)
    more = result.get("environment_complete") is False
    if named or (more and not caches):
        counted = f"{len(named):,} or more files" if more else plural(len(named), "file")
        parts.append(f"{counted} outside of the workspace")
    if caches:
        parts.append(plural(len(caches), "cache file"))
    if result.get("environment_differs") and not (named or caches or more):
        paths = result.get("environment_paths")
        if isinstance(paths, int):
            parts.append(f"up to {plural(paths, 'path')} outside of the workspace")
        elif not packages:
            parts.append("the environment")
    if environ := _environ(result):
        parts.append(plural(len(environ), "environment variable"))
    return parts


def _warnings(result: Mapping[str, Any]) -> list[str]:
    return [f"warning: {one_line(str(text), 1000)}" for text in result.get("warnings") or ()]


def _environ_names(result: Mapping[str, Any]) -> list[str]:
    names = [str(one["name"]) for one in _environ(result)]
    return [f"  environment variables as before: {_first(names)}"] if names else []


def _environ_row(one: Mapping[str, Any]) -> str:
    before, after = (
        "not set" if value is None else one_line(str(value), 60)
        for value in (one["before"], one["after"])
    )
    told = f"{before} → {after}" if before != after else f"changed {after}"
    return f"${one_line(str(one['name']), 60)}  {told}"


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


def _first(names: Iterable[str], width: int = 60) -> str:
    listed = list(names)
    more = len(listed) - NAMES_SHOWN
    shown = ", ".join(one_line(name, width) for name in listed[:NAMES_SHOWN])
    return shown + (f" and {more:,} more" if more > 0 else "")


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
