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
Differences = dict[str, list[dict[str, Any]]]
"""``added``, ``removed``: ``{"name", …summary}``; ``changed``: ``{"name", "before", "after"}``."""


def public(summary: Summary) -> dict[str, Any]:
    """The part of a summary that clients see: without its fingerprint."""
    return {key: summary.get(key) for key in PUBLIC}


def public_variables(variables: Mapping[str, Summary]) -> dict[str, dict[str, Any]]:
    """All summaries without their fingerprints, by name."""
    return {name: public(summary) for name, summary in variables.items()}


def diff(before: Mapping[str, Summary], after: Mapping[str, Summary]) -> Differences:
    """What came, went and changed on the way from ``before`` to ``after``, sorted by name."""
    added = [{"name": name, **public(after[name])} for name in sorted(after.keys() - before.keys())]
    removed = [
        {"name": name, **public(before[name])} for name in sorted(before.keys() - after.keys())
    ]
    changed = [
        {"name": name, "before": public(before[name]), "after": public(after[name])}
        for name in sorted(before.keys() & after.keys())
        if differs(before[name], after[name])
    ]
    return {"added": added, "removed": removed, "changed": changed}


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
