"""Timelines as text and HTML."""

from __future__ import annotations

import unicodedata
from datetime import datetime, timezone
from html.parser import HTMLParser

import pytest

from jupyter_timetravel import render
from jupyter_timetravel.render import (
    checkpoint_text,
    clock,
    details_text,
    status_text,
    table_text,
    tree_html,
    tree_text,
)
from kernel_runtime.timeline import Capture, Coordinate, Note

HOSTILE = "<img src=x onerror=alert(1)> & \x1b]0;owned\x07\n\u202eevil"


def listing(timeline):
    return {
        "checkpoints": [timeline.record(c, history=False) for c in timeline],
        "parents": timeline.parents(),
        "head": timeline.state.head,
    }


def test_the_tree(timeline):
    lines = [
        line.replace("  2025-01-31 ", " ") for line in tree_text(listing(timeline)).splitlines()
    ]
    assert [line[:6].rstrip() for line in lines] == [
        "○   #1",
        "○   #2",
        "├─○ #3",
        "○   #4",
        "○   #5",
        "●   #6",
    ]
    assert "the kernel started" in lines[0]
    assert '"before the join"' in lines[1]
    assert "[clean]  pinned" in lines[2]
    assert lines[5].endswith("← you are here")


def test_of_a_long_timeline_the_newest_and_the_head_are_shown(timeline, monkeypatch):
    monkeypatch.setattr(render, "HEAD_SHOWN", 2)
    lines = tree_text(listing(timeline), limit=3).splitlines()
    assert lines[0] == "… 3 more: %timeline --all"
    assert [line.split()[1] for line in lines[1:]] == ["#4", "#5", "#6"]
    assert "3 more" in tree_html(listing(timeline), limit=3)
    assert "more" not in tree_text(listing(timeline), limit=None)
    timeline.move_head(timeline.resolve(3).id)
    lines = tree_text(listing(timeline), limit=1).splitlines()
    assert any("#3" in line and "you are here" in line for line in lines)
    assert any("#6" in line for line in lines) and not any("#4" in line for line in lines)


def test_an_empty_timeline():
    nothing = {"checkpoints": [], "parents": {}, "head": None}
    assert tree_text(nothing) == "no checkpoints yet"
    assert "no checkpoints yet" in tree_html(nothing)
    assert table_text(nothing) == "no checkpoints"


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.add(tag)
        assert all(name == "style" for name, _ in attrs), attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_html_is_a_table_without_anything_that_runs(timeline):
    timeline.replace(timeline.head.id, comment=HOSTILE, label="<b>")
    html = tree_html(listing(timeline))
    tags = Tags()
    tags.feed(html)
    assert not tags.open
    assert tags.seen == {"div", "table", "tbody", "tr", "td", "b"}
    assert "<img src=x onerror=alert(1)>" in tags.text and "[<b>]" in tags.text
    assert "var(--jp-" in html


@pytest.mark.parametrize("draw", [tree_text, table_text])
def test_hostile_comments_stay_on_their_line(timeline, draw):
    timeline.replace(timeline.head.id, comment=HOSTILE)
    told = draw(listing(timeline))
    assert len(told.splitlines()) == 6
    assert not any(unicodedata.category(c) in ("Cc", "Cf") for c in told if c != "\n")


def full_record(timeline, **changes):
    notes = tuple(Note("child process", f"{n} (sleep)", "gone") for n in range(10))
    checkpoint = timeline.add(
        created_at=datetime.now(timezone.utc),
        reason="manual",
        coordinate=Coordinate("e", 1, 7),
        code="df = 1",
        label="L",
        pinned=True,
        captures=[
            Capture("process", "fork", "ready", 5_000_000, not_captured=notes),
            Capture("filesystem", "workspace", "failed", error="the disk is full"),
        ],
        **changes,
    )
    return timeline.record(checkpoint)


def test_details(timeline):
    variables = {f"v{n:02}": {"type": "int", "value": str(n)} for n in range(50)}
    told = details_text({"checkpoint": full_record(timeline), "variables": variables})
    for part in ("[7] df = 1", "fork, ready, 5.0 MB", "workspace, failed: the disk is full",
                 "not held: child process 3 (sleep): gone", "50 variables", "v03  int 3",
                 "and 10 variables more", "asked for, pinned (manual)"):  # fmt: skip
        assert part in told


def test_details_tell_the_cells_and_what_they_did_outside(timeline):
    ran = {"execution_count": 7, "outcome": "ok", "ename": None, "effects": []}
    failed = {**ran, "execution_count": 8, "outcome": "error", "ename": "ValueError"}
    cells = [
        {**ran, "source": "# why\ndf = 1", "effects": [{"text": "sent to a.example:443"}]},
        {**failed, "source": "raise ValueError"},
    ]
    record = full_record(timeline)
    told = details_text({"checkpoint": record, "variables": {}, "cells": cells})
    at = told.index("[7] # why")
    assert told[at:].splitlines()[1:3] == [
        "    not undone: sent to a.example:443",
        "  cell        [8] raise ValueError  → ValueError",
    ]
    many = details_text({"checkpoint": record, "variables": {}, "cells": cells * 30})
    assert "and 20 cells more" in many


def test_a_new_checkpoint_says_what_it_does_not_hold(timeline):
    lines = checkpoint_text(full_record(timeline, comment="c"), 3.14).splitlines()
    assert lines[0] == 'checkpoint #7 "c" [L] (3.1 ms)'
    assert lines[1] == "  not held: child process 0 (sleep): gone"
    assert "  … and 2 more: %timeline 7" in lines
    assert lines[-1] == "  filesystem not captured: the disk is full"


def test_what_cannot_be_restored_is_marked(timeline):
    head = timeline.head.id
    for captures, expected in [
        ([Capture("process", "fork", "evicted")], "memory evicted, no files either"),
        (
            [Capture("process", "fork", "evicted"), Capture("filesystem", "workspace", "ready")],
            "memory evicted, files only",
        ),
        ([], "memory not captured, no files either"),
    ]:
        timeline.replace(head, captures=captures)
        assert expected in tree_text(listing(timeline)).splitlines()[-1]
    timeline.replace(head, captures=[Capture("process", "fork", "ready")])
    assert "memory" not in tree_text(listing(timeline)).splitlines()[-1]


def test_status(timeline):
    told = status_text(
        {
            "head": timeline.record(timeline.head),
            "busy": True,
            "config": {"auto": "cell"},
            "memory": {"frozen_bytes": 3_000_000, "budget_bytes": 6_000_000_000},
            "engines": {"process": "fork", "filesystem": None},
            "workspace": ["/w"],
            "limits": ["no namespaces"],
            "counts": {"frozen": 6},
            "last_cow_tax_ms": 2.5,
        }
    )
    for part in ("at #6 x = 6 (a cell is running)", "3.0 MB held", "of at most 6.0 GB",
                 "process: fork, filesystem: none", "no namespaces", "auto=cell", "2.5 ms",
                 "6 frozen"):  # fmt: skip
        assert part in told


def test_the_clock_shows_the_date_of_other_days(timeline):
    record = timeline.record(timeline.head)
    made = timeline.head.created_at.astimezone()
    assert clock(record, now=made) == made.strftime("%H:%M:%S")
    assert clock(record) == made.strftime("%Y-%m-%d %H:%M:%S")


def test_a_time_that_cannot_be_right_is_told(timeline):
    found = listing(timeline)
    records = [dict(record) for record in found["checkpoints"]]
    records[1]["created_at"] = "2099-01-01T00:00:00+00:00"
    records[-1]["created_at"] = "2001-01-01T00:00:00+00:00"
    shown = tree_text({**found, "checkpoints": records}).splitlines()
    told = [line.split("#")[1].split()[0] for line in shown if "the clock was off" in line]
    assert told == [str(records[1]["number"]), str(records[-1]["number"])]
    assert tree_html({**found, "checkpoints": records}).count("the clock was off") == 2
    assert "the clock was off" not in tree_text(found)
