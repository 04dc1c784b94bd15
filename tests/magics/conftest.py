"""A shell with the magics on a link that only notes what it is asked."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_timetravel.magics import TimeTravelMagics
from kernel_runtime.timeline import Coordinate, Timeline, TimelineState

START = datetime(2025, 1, 31, 12, 0, tzinfo=timezone.utc)


def _make_timeline() -> Timeline:
    """Six checkpoints: 1, 2 (commented), 3 (labelled), then a branch 4 from 2, and 5, 6."""
    timeline = Timeline(TimelineState("t" * 32))

    def add(**changes: Any) -> Any:
        number = timeline.state.next_number
        given: dict[str, Any] = {
            "created_at": START + timedelta(seconds=number),
            "reason": "cell",
            "coordinate": Coordinate("e", 1, number),
            "id": f"{number:032x}",
            "code": f"x = {number}",
        }
        return timeline.add(**{**given, **changes})

    add(reason="start", code="")
    second = add(comment="before the join", reason="manual")
    add(label="clean", pinned=True)
    timeline.move_head(second.id)
    for _ in range(3):
        add()
    return timeline


class NotingLink:
    """Answers from a timeline; ``asked`` holds each command with its arguments."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.timeline = _make_timeline()

    def request(self, command: str, args: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((command, args))
        timeline = self.timeline
        record = timeline.record(timeline.resolve(-1))
        if command == "list":
            records = [timeline.record(c, history=False) for c in timeline]
            return {
                "checkpoints": records,
                "parents": timeline.parents(),
                "head": timeline.state.head,
            }
        if command == "get":
            found = timeline.resolve(args["checkpoint"])
            return {"checkpoint": timeline.record(found), "variables": {}}
        if command == "config":
            return {"config": {"auto": "cell", **args["set"]}}
        if command == "diff":
            nothing = {"added": [], "removed": [], "changed": []}
            return {"variables": nothing, "files": []}
        if command == "outside":
            nothing_cached = {"files": 0, "bytes": 0}
            return {"directories": [], "caches": nothing_cached, "files": [], "complete": True}
        return {"checkpoint": record, "deleted": record, "pause_ms": 3.14, "text": "told"}


@pytest.fixture
def timeline() -> Timeline:
    return _make_timeline()


@pytest.fixture
def link() -> NotingLink:
    return NotingLink()


@pytest.fixture
def shell(link: NotingLink, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    shell = InteractiveShell()
    shell.history_manager.enabled = False
    TimeTravelMagics(shell, link).register()
    yield shell
    shell.history_manager.end_session()
