"""What differs between the variables of two checkpoints, told from their summaries.

A summary carries a fingerprint of up to three parts, ``{"id": …, "sample": …, "full": …}``
(see ``kernel_runtime.executor.variables``, which makes them). A variable counts as changed

- when both have a ``full`` part (a digest of the whole content) and these differ,
- else when its type, its size or shape, its identity or the sampled content differs.

So a change deep inside a large object that keeps its identity and its sampled bytes is missed,
and an object that is known by identity alone counts as changed after the process it lived in
was started anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kernel_runtime.timeline.model import Summary

PUBLIC: Final = ("type", "size", "shape", "value")
ENVIRON: Final = "$"
"""How the keys of environment variables begin, which travel with the summaries."""
Differences = dict[str, list[dict[str, Any]]]
"""``added``, ``removed``: ``{"name", …summary}``; ``changed``: ``{"name", "before", "after"}``."""


def public(summary: Summary) -> dict[str, Any]:
    """The part of a summary that clients see: without its fingerprint."""
    return {key: summary.get(key) for key in PUBLIC}


def public_variables(variables: Mapping[str, Summary]) -> dict[str, dict[str, Any]]:
    """All summaries of variables without their fingerprints, by name."""
    return {name: public(summary) for name, summary in variables.items() if _is_python(name)}


def diff(before: Mapping[str, Summary], after: Mapping[str, Summary]) -> Differences:
    """What came, went and changed on the way from ``before`` to ``after``, sorted by name."""
    old, new = (set(filter(_is_python, side)) for side in (before, after))
    added = [{"name": name, **public(after[name])} for name in sorted(new - old)]
    removed = [{"name": name, **public(before[name])} for name in sorted(old - new)]
    changed = [
        {"name": name, "before": public(before[name]), "after": public(after[name])}
        for name in sorted(old & new)
        if differs(before[name], after[name])
    ]
    return {"added": added, "removed": removed, "changed": changed}


def diff_environ(
    before: Mapping[str, Summary], after: Mapping[str, Summary]
) -> list[dict[str, Any]]:
    """Environment variables that differ, sorted by name: ``{"name", "before", "after"}``.

    Values are short texts, None where the variable is not set. Only what differs from the start
    of its process has a summary, and that says what it was then.
    """
    found = []
    for key in sorted(name for name in before.keys() | after.keys() if not _is_python(name)):
        old, new = before.get(key), after.get(key)
        was = old.get("value") if old is not None else new.get("base") if new is not None else None
        now = new.get("value") if new is not None else old.get("base") if old is not None else None
        if old is not None and new is not None:
            same = (was is None) == (now is None) and not differs(old, new)
        else:
            same = False
        if not same:
            found.append({"name": key[len(ENVIRON) :], "before": was, "after": now})
    return found


def _is_python(name: str) -> bool:
    return not name.startswith(ENVIRON)


_DIGESTED_ALIKE: Final = frozenset({"str", "bytes", "numpy.ndarray", "ndarray"})


def differs_elsewhere(recorded: Summary, loaded: Summary) -> bool:
    """Whether a value loaded in another process is not the recorded one, as far as one can tell.

    Identities and the sizes of tables are not comparable over processes.
    """
    if any(recorded.get(part) != loaded.get(part) for part in ("type", "shape", "value")):
        return True
    old, new = ((s.get("fingerprint") or {}).get("full") for s in (recorded, loaded))
    return recorded.get("type") in _DIGESTED_ALIKE and None not in (old, new) and old != new


def differs(before: Summary, after: Summary) -> bool:
    """Whether two summaries of one name tell of different values."""
    if before is after:
        return False
    if before.get("type") != after.get("type"):
        return True
    old: Mapping[str, Any] = before.get("fingerprint") or {}
    new: Mapping[str, Any] = after.get("fingerprint") or {}
    if "full" in old and "full" in new:
        return bool(old["full"] != new["full"])
    if before.get("shape") != after.get("shape") or before.get("size") != after.get("size"):
        return True
    shared = (old.keys() & new.keys()) - {"full"}
    return any(old[part] != new[part] for part in shared)


def share(before: Mapping[str, Summary], after: Mapping[str, Summary]) -> Mapping[str, Summary]:
    """``after``, made of the very summaries of ``before`` where they are equal.

    A thousand checkpoints of a thousand variables would else hold a million summaries.
    """
    if not before:
        return after
    shared = {}
    same = len(before) == len(after)
    for name, summary in after.items():
        known = before.get(name)
        if known == summary and known is not None:
            shared[name] = known
        else:
            shared[name] = summary
            same = False
    return before if same else shared
