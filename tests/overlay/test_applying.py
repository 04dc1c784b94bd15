"""Files of the environment onto the host."""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path

import pytest
from layers import GONE, Made, Opaque

from kernel_runtime.engines.overlay import applying
from kernel_runtime.engines.overlay.applying import Done, copy_out
from kernel_runtime.engines.overlay.changes import changes
from kernel_runtime.engines.overlay.errors import ApplyFailed, ApplyRefused


def everything(made: Made) -> list[bytes]:
    return [change.path for change in changes(made.stack(0), made.stack())]


def now() -> int:
    """The present, later than all that was done and earlier than all that will be."""
    time.sleep(0.02)
    at = time.time_ns()
    time.sleep(0.02)
    return at


def test_every_kind(made: Made) -> None:
    base = made.base({"old": "o", "gone": {"deep": {"f": "f"}}, "d": {"x": "x"}, "keep": "k"})
    layer = made.layer(
        {
            "old": "new", "gone": GONE, "d": Opaque(y="y"), "made": {"deep": {"f": "f"}},
            "link": Path("made"), "old2": "",
        }
    )  # fmt: skip
    os.chmod(layer / "made" / "deep" / "f", 0o751)
    os.utime(layer / "made" / "deep" / "f", ns=(1, 1_000_000_007))
    os.setxattr(layer / "made", made.markers.prefix + "overlay.opaque", b"y")
    os.chmod(layer / "made" / "deep", 0o555)
    os.utime(layer / "made", ns=(1, 8))
    stack = made.stack()
    done = copy_out(stack, everything(made), base, since_ns=now())
    assert {d.path: d.action for d in done} == {
        b"d/x": "deleted", b"d/y": "created", b"gone": "deleted",
        b"link": "created", b"made": "created", b"made/deep": "created",
        b"made/deep/f": "created", b"old": "replaced", b"old2": "created",
    }  # fmt: skip
    # an attribute that a mount would take for its own is on the host under its plain name
    assert [p for p in everything(made) if p != b"made"] == []
    assert sorted(p.name for p in base.iterdir()) == ["d", "keep", "link", "made", "old", "old2"]
    assert (base / "old").read_text() == "new"
    assert stat.S_IMODE((base / "made" / "deep" / "f").stat().st_mode) == 0o751
    assert (base / "made" / "deep" / "f").stat().st_mtime_ns == 1_000_000_007
    assert (base / "made").stat().st_mtime_ns == 8
    assert copy_out(stack, everything(made), base, since_ns=0) == []
    for place in (layer, base):
        os.chmod(place / "made" / "deep", 0o755)


def test_one_file_brings_its_directories(made: Made) -> None:
    base = made.base({})
    layer = made.layer({"a": {"b": {"f": "f", "g": "g"}}})
    os.chmod(layer / "a", 0o711)
    assert copy_out(made.stack(), [b"a/b/f"], base) == [
        Done(b"a", "created", ""),
        Done(b"a/b", "created", ""),
        Done(b"a/b/f", "created", ""),
    ]
    assert stat.S_IMODE((base / "a").stat().st_mode) == 0o711
    assert not (base / "a" / "b" / "g").exists()


def test_what_was_changed_on_the_host_is_not_lost(made: Made) -> None:
    base = made.base({"f": "f", "d": {"g": "g"}, "untouched": "u"})
    made.layer({"f": "ours", "d": GONE, "untouched": "ours"})
    since = now()
    (base / "f").write_text("theirs")
    (base / "d" / "new").write_text("theirs")
    with pytest.raises(ApplyRefused, match="changed on the host since") as refused:
        copy_out(made.stack(), [b"f", b"d", b"untouched"], base, since_ns=since)
    assert [path for path, _ in refused.value.problems] == [b"d", b"f"]
    assert "/new was changed" in str(refused.value) and "force" in str(refused.value)
    assert (base / "untouched").read_text() == "u"
    assert copy_out(made.stack(), [b"untouched"], base, since_ns=since)
    copy_out(made.stack(), [b"f", b"d"], base, since_ns=since, force=True)
    assert (base / "f").read_text() == "ours" and not (base / "d").exists()


def test_a_new_file_on_the_host_in_the_place_of_a_new_one_of_ours(made: Made) -> None:
    base = made.base({})
    made.layer({"results": {"run.csv": "1"}})
    since = now()
    (base / "results").mkdir()
    (base / "results" / "run.csv").write_text("theirs")
    with pytest.raises(ApplyRefused):
        copy_out(made.stack(), [b"results", b"results/run.csv"], base, since_ns=since)
    assert (base / "results" / "run.csv").read_text() == "theirs"


def test_nothing_is_reached_through_a_symlink(made: Made) -> None:
    outside = made.top / "outside"
    outside.mkdir()
    (outside / "f").write_text("precious")
    base = made.base({"d": {"f": "f"}})
    made.layer({"d": {"f": "ours", "g": GONE}})
    (base / "d" / "f").unlink()
    (base / "d").rmdir()
    (base / "d").symlink_to(outside)
    with pytest.raises(ApplyRefused, match="symlink on the host"):
        copy_out(made.stack(), [b"d/f"], base)
    assert (outside / "f").read_text() == "precious"
    # chosen itself, the symlink is replaced and not what it leads to
    copy_out(made.stack(), [b"d", b"d/f"], base)
    assert (outside / "f").read_text() == "precious"
    assert not (base / "d").is_symlink() and (base / "d" / "f").read_text() == "ours"


def test_paths_that_lead_out_are_refused(made: Made) -> None:
    base = made.base({})
    for bad in (b"../x", b"/etc/passwd", b"", b"a/../../x"):
        with pytest.raises((ApplyRefused, ValueError)):
            copy_out(made.stack(), [bad], base)


def test_what_is_masked_away_is_never_touched(made: Made) -> None:
    base = made.base({"home": {"store": {"precious": "p"}, "f": "f"}})
    made.layer({"home": {"f": GONE}})
    hidden = frozenset([b"home/store"])
    for path in (b"home/store", b"home/store/precious"):
        with pytest.raises(ApplyRefused, match="not part of the environment"):
            copy_out(made.stack(hidden=hidden), [path], base, force=True)
    made.layer({"home": GONE})
    with pytest.raises(ApplyRefused, match="not part of the environment"):
        copy_out(made.stack(hidden=hidden), [b"home"], base, force=True)
    assert (base / "home" / "store" / "precious").exists()


def test_another_filesystem_is_not_emptied(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    base = made.base({"d": {"vol": {"f": "f"}}})
    made.layer({"d": GONE})
    mounts = {os.fsencode(base / "d" / "vol")}
    monkeypatch.setattr(applying, "_mount_points", lambda: mounts)
    with pytest.raises(ApplyRefused, match="another filesystem"):
        copy_out(made.stack(), [b"d"], base, force=True)


def test_mount_points_are_read_with_their_odd_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mounts").write_bytes(b"1 2 0:1 / /a\\040b\\134c\xff rw - tmpfs t rw\n")
    monkeypatch.setattr(applying, "_MOUNTINFO", str(tmp_path / "mounts"))
    assert applying._mount_points() == {b"/a b\\c\xff"}


def test_a_file_in_the_place_of_a_tree_and_back(made: Made) -> None:
    base = made.base({"d": {"x": {"y": "y"}}, "f": "f"})
    made.layer({"d": "file", "f": {"z": "z"}})
    copy_out(made.stack(), everything(made), base, since_ns=now())
    assert (base / "d").read_text() == "file" and (base / "f" / "z").read_text() == "z"
    assert sorted(p.name for p in base.iterdir()) == ["d", "f"]


def test_a_failure_half_way_is_told_and_leaves_whole_files(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = made.base({"a": "old", "b": "old"})
    made.layer({"a": "new", "b": "new"})
    real = os.rename

    def refuse(source: bytes, target: bytes) -> None:
        if target.endswith(b"/b"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(ApplyFailed, match=r"b could not be copied .* No space left .* 1 paths"):
        copy_out(made.stack(), [b"a", b"b"], base)
    monkeypatch.undo()
    assert sorted(p.name for p in base.iterdir()) == ["a", "b"]
    assert (base / "a").read_text() == "new" and (base / "b").read_text() == "old"
    assert [d.path for d in copy_out(made.stack(), [b"a", b"b"], base)] == [b"b"]


def test_the_hosts_own_is_left_alone(made: Made) -> None:
    base = made.base({"f": "f"})
    made.layer({})
    assert copy_out(made.stack(), [b"f", b"never"], base) == []
