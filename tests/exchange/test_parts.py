"""The parts by themselves: whose history it is, and an archive with any byte damaged."""

from __future__ import annotations

import io
import json
import random
import tarfile
from pathlib import Path

import pytest

from jupyter_timetravel.exchange import manifest
from jupyter_timetravel.exchange.errors import ImportRefused
from jupyter_timetravel.exchange.members import BadMember, Member, Reader, Writer
from jupyter_timetravel.exchange.reading import unpack
from kernel_runtime.engines.overlay.markers import USER
from kernel_runtime.store.notebooks import cells_of
from kernel_runtime.timeline.documents import Known, Looks, judge


def looks(path: str, *cells: str, file: int = 0) -> Looks:
    return Looks(path, (file, 1) if file else None, frozenset(f"id:{c}" for c in cells))


def known(
    id: str, path: str | None, was: Looks, *, exists: bool = True, used: bool = False
) -> Known:
    return Known(id, path, was, exists, used)


def test_the_same_path() -> None:
    was = known("1", "/a", looks("/a", "x", "y", file=7))
    for now in (
        looks("/a", "x", file=8),  # another version
        looks("/a", "z", file=7),  # everything was rewritten in place
        Looks("/a"),  # it cannot be read
    ):
        assert judge(now, [was]).outcome == "same"
    assert judge(looks("/a", "z", file=8), [was]).outcome == "replaced"
    assert judge(looks("/a", file=8), [was]).aside == "1"
    assert (
        judge(looks("/a", "z", file=8), [known("1", "/a", looks("/a", file=7))]).outcome == "same"
    )


def test_another_path() -> None:
    was = looks("/a", "x", "y", "z", file=7)
    gone, there = known("1", "/a", was, exists=False), known("1", "/a", was)
    assert judge(looks("/b", "q", file=7), [gone]).timeline == "1"
    assert judge(looks("/b", "x", "y", file=8), [gone]).outcome == "moved"
    assert judge(looks("/b", "x", file=8), [gone]).outcome == "new"
    assert judge(looks("/b", "x", "y", file=8), [there]).outcome == "copied"
    busy = known("1", "/a", was, exists=False, used=True)
    assert judge(looks("/b", "x", "y", file=8), [busy]).timeline is None


def test_of_two_that_are_gone_the_nearer_one() -> None:
    rows = [
        known("1", "/a", looks("/a", "x", "y"), exists=False),
        known("2", "/b", looks("/b", "x", "y", "z"), exists=False),
    ]
    assert judge(looks("/c", "x", "y", "z"), rows).timeline == "2"


def test_a_name_that_comes_back() -> None:
    aside = known("1", None, looks("/a", "x", file=1))
    here = known("2", "/a", looks("/a", "p", file=2))
    verdict = judge(looks("/a", "x", file=3), [aside, here])
    assert (verdict.outcome, verdict.timeline, verdict.aside) == ("returned", "1", "2")


def test_looks_survive_the_store_and_know_earlier_names() -> None:
    first = Looks("/P/a", (1, 2), frozenset({"id:x"}), roots=(("/P", 5, 6),))
    second = Looks("/Q/b", (1, 2), None, roots=(("/Q", 5, 6),)).after(first)
    assert Looks.from_json(second.as_json()) == second
    assert second.cells == first.cells
    assert second.names_before() == ["/P/a", "/Q/a"]
    with pytest.raises(ValueError, match="not what"):
        Looks.from_json('{"path": 1}')


@pytest.mark.parametrize("text", ["", "[]", '{"cells": 3}', '{"cells": [1]}', "[" * 100_000])
def test_what_is_no_notebook_has_no_cells(text: str, tmp_path: Path) -> None:
    path = tmp_path / "n.ipynb"
    path.write_text(text)
    assert cells_of(path) is None
    assert cells_of(tmp_path) is None


def archive() -> bytes:
    """A small one with a member of every kind; of no known key."""
    row = {
        "id": "1", "number": 0, "parent": None, "created_at": "2026-01-01T00:00:00+00:00",
        "comment": "", "label": None, "pinned": False, "is_auto": True, "reason": "start",
        "code": "", "captures": [], "variables": {},
        "coordinate": {
            "epoch": "", "incarnation": 0, "execution_count": 0, "cell_id": None, "msg_id": None
        },
    }  # fmt: skip
    members = [
        Member("layers/a", "directory", mode=0o755, mtime_ns=1_500_000_000_123_456_789),
        Member("layers/a/\udcff" + "n" * 120, size=3, xattrs={"user.x": b"\0\xff"}),
        Member("layers/a/l", "symlink", target="/nowhere"),
        Member("layers/a/p", "fifo"),
        Member("layers/a/.wh.gone"),
    ]
    head = json.dumps({
        "format": 1, "key": "k", "notebook": "n", "kernel_name": "python3", "total": 3,
        "exported_at": "2026-01-01T00:00:00+00:00", "members": len(members), "head": "1",
        "next_number": 1, "checkpoints": [row],
    }).encode()  # fmt: skip
    out = io.BytesIO()
    writer = Writer(out)
    writer.add(Member(manifest.NAME, size=len(head)), [head])
    for member in members:
        writer.add(member, [b"abc"] if member.size else [])
    signature = b'{"signature": "none"}'
    writer.add(Member(manifest.SIGNATURE, size=len(signature)), [signature])
    writer.finish()
    return out.getvalue()


def test_members_come_back_as_they_were_written() -> None:
    data = archive()
    reader, found = Reader(io.BytesIO(data)), []
    for member in reader.members():
        found.append((member, b"".join(reader.content(member))))
    assert found[2][0].name == "layers/a/\udcff" + "n" * 120
    assert found[2][0].xattrs == {"user.x": b"\0\xff"}
    assert found[2][1] == b"abc"
    assert found[1][0].mtime_ns == 1_500_000_000_123_456_789
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert len(tar.getmembers()) == len(found)


def test_any_damage_is_refused_or_changes_nothing_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_TIMETRAVEL_KEYS", str(tmp_path / "keys"))
    whole, chance = archive(), random.Random(1)
    refused = 0
    for number in range(150):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 1, 3))):
            data[chance.randrange(len(data))] = chance.choice((0, 47, 46, 48, 55, 255, 65))
        if number % 5 == 0:
            del data[chance.randrange(len(data)) :]
        top = tmp_path / str(number)
        top.mkdir()
        (tmp_path / "f").write_bytes(data)
        try:
            unpack(tmp_path / "f", top, USER)
        except ImportRefused:
            refused += 1
    assert refused > 75
    outside = {p.name for p in tmp_path.iterdir()} - {str(n) for n in range(150)}
    assert outside == {"f", "keys"}


def test_an_attribute_list_that_is_endless() -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 1 << 30
    with pytest.raises(BadMember, match="attributes"):
        next(Reader(io.BytesIO(info.tobuf(tarfile.GNU_FORMAT))).members())
