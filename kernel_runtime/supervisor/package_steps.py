"""Which packages each checkpoint changed, so that a restore can say at once what it changes.

A restore from here to there changes what the checkpoints on the way changed, composed. Each step is
found out in the background after its checkpoint; where one is not known, neither is the sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kernel_runtime.supervisor.environment import layers_of
from kernel_runtime.timeline.model import Capture, Checkpoint

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

Packages = list[dict[str, Any]]


class PackageSteps:
    """Of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._steps: dict[tuple[str, str], Packages] = {}

    async def learn(self, checkpoint: Checkpoint) -> None:
        """Find out what a new checkpoint changed since its parent. Never raises OSError."""
        parent = checkpoint.parent
        timeline = self._session.timeline
        if (
            parent is None
            or parent not in timeline
            or self._step(timeline[parent], checkpoint) is not None
        ):
            return
        before, after = _layers(timeline[parent]), _layers(checkpoint)
        if before is None or after is None:
            return
        try:
            found = await self._session.environment_changes.compare(before, after, files=False)
        except OSError:
            return
        self._steps[parent, checkpoint.id] = found["packages"]

    def between(self, start: Checkpoint, end: Checkpoint) -> Packages | None:
        """What changes from one to the other; None if that is not known."""
        timeline = self._session.timeline
        forth = [*timeline.history(start.id), start.id]
        back = [*timeline.history(end.id), end.id]
        common = 0
        while common < min(len(forth), len(back)) and forth[common] == back[common]:
            common += 1
        if common == 0:
            return None
        steps: list[Packages] = []
        for chain, reverse in ((forth[common - 1 :], True), (back[common - 1 :], False)):
            found = []
            for parent, child in pairwise(chain):
                step = self._step(timeline[parent], timeline[child])
                if step is None:
                    return None
                found.append([_reversed(p) for p in step] if reverse else step)
            steps += reversed(found) if reverse else found
        return compose(steps)

    def _step(self, parent: Checkpoint, child: Checkpoint) -> Packages | None:
        before, after = _layers(parent), _layers(child)
        if before is not None and after is not None and layers_of(before) == layers_of(after):
            return []
        return self._steps.get((parent.id, child.id))


def compose(steps: Iterable[Packages]) -> Packages:
    """One list of changes for several in a row; what comes back to where it was is none."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for step in steps:
        for one in step:
            key = (one["manager"], one["where"], one["name"].lower().replace("_", "-"))
            first = found.get(key)
            found[key] = {**one, "before": first["before"] if first else one["before"]}
    return [one for one in found.values() if one["before"] != one["after"]]


def _reversed(package: dict[str, Any]) -> dict[str, Any]:
    return {**package, "before": package["after"], "after": package["before"]}


def _layers(checkpoint: Checkpoint) -> Capture | None:
    capture = checkpoint.capture("filesystem", engine="overlay")
    return capture if capture is not None and capture.state == "ready" else None
