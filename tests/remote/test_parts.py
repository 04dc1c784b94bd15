"""Parts of a transfer that a session seldom has: large files, layers in pieces, lists by two."""

from __future__ import annotations

import argparse
import contextlib
import os
from datetime import datetime, timezone
from pathlib import Path

import pytest

from jupyter_timetravel import cli
from jupyter_timetravel.remote import listing
from jupyter_timetravel.remote.listing import Listing
from jupyter_timetravel.remote.pushing import cut
from kernel_runtime.engines.workspace.engine import WorkspaceEngine
from kernel_runtime.store.blobs import BlobStore
from kernel_runtime.store.database import open_store
from kernel_runtime.timeline.model import Capture, Coordinate


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_TIMETRAVEL_KEYS", str(tmp_path / "keys"))


def test_a_large_file_that_is_held(tmp_path: Path, keys: None) -> None:
    """One that the store keeps without reading it, in more than one piece, with holes."""
    work, store = tmp_path / "w", tmp_path / "store"
    work.mkdir()
    (work / "a.ipynb").write_text("{}")
    content = os.urandom(5 << 20) + bytes(9 << 20) + b"end"
    (work / "large").write_bytes(content)
    with contextlib.closing(open_store(store)) as opened:
        timeline = opened.load_timeline(str(work / "a.ipynb"), "k", epoch="e" * 32)
        blobs = BlobStore(store)
        engine = WorkspaceEngine([work], blobs, journal_dir=store / "journal", copy_limit=1 << 20)
        with contextlib.closing(engine):
            snapshot = engine.capture()
            blobs.pin(snapshot.id)
            capture = Capture("filesystem", "workspace", "ready", ref=snapshot.id)
            checkpoint = timeline.add(
                created_at=datetime.now(timezone.utc),
                reason="manual",
                coordinate=Coordinate("e" * 32),
                captures=[capture],
            )
            opened.save(timeline.state, [checkpoint])
    assert list((store / "held").iterdir())
    remote = (tmp_path / "remote").as_uri()
    assert cli.main(["push", remote, "--store", str(store)]) == 0
    other = tmp_path / "other"
    back = tmp_path / "back"
    back.mkdir()
    (back / "b.ipynb").write_text("{}")
    assert cli.main(["pull", remote, "--as", str(back / "b.ipynb"), "--store", str(other)]) == 0
    assert cli.main(["restore", str(back / "b.ipynb"), "-1", "--store", str(other)]) == 0
    assert (back / "large").read_bytes() == content
    assert list((other / "held").iterdir())
    assert (other / "remotes").exists() is False
    assert cli.main(["check", "--store", str(other)]) == 0


def test_pieces_do_not_depend_on_how_content_comes() -> None:
    content = os.urandom(9 << 20)
    whole = list(cut([content]))
    assert [len(piece) for piece in whole] == [4 << 20, 4 << 20, 1 << 20]
    assert list(cut(content[at : at + 70_001] for at in range(0, len(content), 70_001))) == whole
    assert list(cut([])) == []


def row(id: str, number: int, **states: str) -> dict[str, object]:
    captures = [{"kind": k, "engine": k, "state": s, "ref": k} for k, s in states.items()]
    return {"id": id, "number": number, "captures": captures, "label": None}


def test_two_lists_are_one() -> None:
    shared = {"next_number": 3, "head": "a"}
    first = Listing(
        {**shared, "checkpoints": [row("a", 1, namespace="ready")], "objects": {"x": 1}}
    )
    second = Listing(
        {
            **shared,
            "next_number": 4,
            "checkpoints": [row("b", 2), row("a", 1, namespace="evicted", filesystem="ready")],
            "objects": {"y": 2},
        }
    )
    both = listing.merged([first, second])
    assert both is not None
    assert [one["id"] for one in both.rows] == ["a", "b"]
    held = {c["kind"]: c["state"] for c in both.rows[0]["captures"]}
    assert held == {"namespace": "ready", "filesystem": "ready"}, "what one of them holds stays"
    assert both.objects == {"x": 1, "y": 2} and both.value["next_number"] == 4
    assert listing.merged([both, first]) is not None
    again = listing.merged([both, second])
    assert again is not None and again.says_the_same(both)
    assert listing.merged([]) is None


def test_arguments() -> None:
    parser = cli.build_parser()
    given = parser.parse_args(["push", "s3://b/p", "a.ipynb", "3", "one"])
    assert (given.notebook, given.checkpoints) == ("a.ipynb", ["3", "one"])
    given = parser.parse_args(["pull", "s3://b/p", "a.ipynb", "-1"])
    assert isinstance(given, argparse.Namespace) and given.checkpoints == ["-1"]
