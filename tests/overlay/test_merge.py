"""Several layers into one, and copies of one."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from layers import GONE, Made, Opaque, shown
from signatures import signature

from kernel_runtime.engines.overlay import entries
from kernel_runtime.engines.overlay.changes import changes, touched
from kernel_runtime.engines.overlay.copying import copy_file, copy_tree
from kernel_runtime.engines.overlay.markers import Markers, all_attributes
from kernel_runtime.engines.overlay.merge import merge
from kernel_runtime.engines.overlay.stack import Stack


def merged(made: Made, **options: Any) -> Path:
    target = made.top / "merged"
    merge(made.layers, target, made.markers, **options)
    return target


def says(layer: Path, markers: Markers) -> dict[str, str]:
    return {
        os.fsdecode(t.path): "gone" if t.deleted else "opaque" if t.opaque else "there"
        for t in touched(layer, markers)
    }


@pytest.mark.parametrize(
    ("older", "newer", "expected"),
    [
        ({"f": "1"}, {"f": GONE}, {"f": "gone"}),
        ({"f": GONE}, {"f": "2"}, {"f": "there"}),
        ({"d": GONE}, {"d": {"n": "n"}}, {"d": "opaque", "d/n": "there"}),
        ({"d": "file"}, {"d": {}}, {"d": "opaque"}),
        ({"d": Opaque(m="m")}, {"d": {"m": GONE}}, {"d": "opaque"}),
        ({"d": {"m": "m"}}, {"d": Opaque()}, {"d": "opaque"}),
        ({"d": {"m": "m"}}, {"d": {"m": GONE}}, {"d": "there", "d/m": "gone"}),
        ({"d": Opaque(e=Opaque())}, {}, {"d": "opaque", "d/e": "there"}),
        ({"d": {"e": GONE}}, {"d": {"e": {}}}, {"d": "there", "d/e": "opaque"}),
    ],
)
def test_rules(made: Made, older: Any, newer: Any, expected: Any) -> None:
    made.layer(older)
    made.layer(newer)
    assert says(merged(made), made.markers) == expected


def test_with_nothing_below_no_marker_is_needed(made: Made) -> None:
    made.layer({"f": GONE, "d": Opaque(m="m"), "e": {"x": GONE}})
    made.layer({"d": {"m": GONE}, "g": GONE})
    assert says(merged(made, bottom=True), made.markers) == {"d": "there", "e": "there"}


def test_files_are_the_same_inodes_and_directories_are_as_they_were(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = made.layer({"d": {"f": "f"}})
    newer = made.layer({"d": {"g": "g"}})
    monkeypatch.chdir(newer / "d")  # a socket's path may be too long where tests run
    socket.socket(socket.AF_UNIX).bind("s")
    os.mkfifo(newer / "d" / "p")
    place = os.fsencode(newer / "d")
    os.setxattr(place, made.markers.prefix + "overlay.opaque", b"the user's")
    os.setxattr(place, made.markers.prefix + "impure", b"y")
    os.setxattr(place, "user.k", b"v")
    os.chmod(place, 0o555)
    os.utime(place, ns=(3, 4_000_000_005))
    target = merged(made)
    assert (target / "d" / "f").samefile(older / "d" / "f")
    assert (target / "d" / "g").samefile(newer / "d" / "g")
    assert stat.S_ISSOCK((target / "d" / "s").lstat().st_mode)
    assert stat.S_ISFIFO((target / "d" / "p").lstat().st_mode)
    found = (target / "d").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_mtime_ns) == (0o555, 4_000_000_005)
    assert all_attributes(os.fsencode(target / "d")) == {
        made.markers.prefix + "overlay.opaque": b"the user's",
        "user.k": b"v",
    }
    os.chmod(place, 0o755)
    os.chmod(target / "d", 0o755)


def test_a_directory_with_whiteouts_says_that_it_may_have_some(made: Made) -> None:
    made.layer({"d": {"x": GONE}})
    attributes = all_attributes(os.fsencode(merged(made) / "d"))
    assert attributes == {made.markers.origin: b""}


@pytest.mark.parametrize("code", [errno.EMLINK, errno.EXDEV])
def test_what_cannot_be_linked_is_copied(
    made: Made, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    layer = made.layer({"f": "content", "l": Path("f")})
    os.link(layer / "f", layer / "g")
    os.chmod(layer / "f", 0o440)
    os.utime(layer / "f", ns=(5, 6))
    before = made.stack()

    def refuse(source: bytes, target: bytes, **_: object) -> None:
        if os.fsencode(layer) in source:
            raise OSError(code, os.strerror(code))
        real_link(source, target)

    real_link = os.link
    monkeypatch.setattr(os, "link", refuse)
    target = merged(made)
    assert not (target / "f").samefile(layer / "f")
    assert (target / "f").samefile(target / "g")
    assert changes(before, Stack([target], None, made.markers)) == []


def test_a_failure_leaves_nothing(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.layer({"d": {"f": "f"}, "e": "e"})
    os.chmod(made.layers[0] / "d", 0o555)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "link", refuse)
    before = sorted(made.top.iterdir())
    with pytest.raises(OSError, match="full"):
        merged(made)
    assert sorted(made.top.iterdir()) == before
    with pytest.raises(FileExistsError):
        merge(made.layers, made.top, made.markers)
    with pytest.raises(ValueError, match="no layers"):
        merge([], made.top / "x", made.markers)


def deep(directory: Path, levels: int) -> None:
    here = os.open(directory, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("some name", dir_fd=here)
        below = os.open("some name", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("f", os.O_CREAT, dir_fd=here))
    os.close(here)


def test_deep_trees(made: Made) -> None:
    layer = made.layer({})
    deep(layer, 1500)
    target = merged(made)
    copy_tree(layer, made.top / "copy", made.markers)
    assert changes(made.stack(), Stack([target], None, made.markers)) == []
    assert changes(made.stack(), Stack([made.top / "copy"], None, made.markers)) == []
    assert signature(layer) == signature(layer)
    for tree in (layer, target, made.top / "copy"):
        entries.remove(os.fsencode(tree))
        assert not tree.exists()


def test_a_copy_is_exact(made: Made) -> None:
    layer = made.layer({"d": Opaque(f="f"), "g": GONE, "h": GONE, "l": Path("nowhere"), "e": ""})
    os.unlink(layer / "h")
    os.link(layer / "g", layer / "h")
    os.link(layer / "d" / "f", layer / "hard")
    with open(layer / "sparse", "wb") as file:
        file.seek(8 << 20)
        file.write(b"end")
        file.truncate(16 << 20)
    os.mkfifo(layer / "p", 0o640)
    os.setxattr(layer / "d", made.markers.origin, b"\0\xfb")
    os.setxattr(layer / "d", made.markers.prefix + "overlay.x", b"")
    os.chmod(layer / "d" / "f", 0o4711)
    os.utime(layer / "d" / "f", ns=(1, 2))
    os.utime(layer / "l", ns=(3, 4), follow_symlinks=False)
    os.chmod(layer / "d", 0o1500)
    os.utime(layer / "d", ns=(5, 6))
    copy = made.top / "copy"
    copy_tree(os.fsencode(layer), copy, made.markers)
    for path in [layer, *layer.rglob("*")]:
        other = copy / path.relative_to(layer)
        ours, theirs = path.lstat(), other.lstat()
        for what in ("st_mode", "st_uid", "st_gid", "st_rdev", "st_mtime_ns", "st_nlink"):
            assert getattr(ours, what) == getattr(theirs, what), (path, what)
        assert all_attributes(os.fsencode(path)) == all_attributes(os.fsencode(other))
        if stat.S_ISREG(ours.st_mode):
            assert path.read_bytes() == other.read_bytes()
    assert (copy / "sparse").stat().st_blocks <= (layer / "sparse").stat().st_blocks
    assert (copy / "hard").samefile(copy / "d" / "f")
    with pytest.raises(FileExistsError):
        copy_tree(layer, copy, made.markers)
    for place in (layer, copy):
        os.chmod(place / "d", 0o700)


def test_single_files(made: Made) -> None:
    layer = made.layer({"f": "f", "l": Path("f"), "d": {}})
    copy_file(layer / "f", layer / "g", made.markers)
    copy_tree(layer / "l", layer / "m", made.markers)
    assert (layer / "g").read_text() == "f" and os.readlink(layer / "m") == "f"
    with pytest.raises(IsADirectoryError):
        copy_file(layer / "d", layer / "x", made.markers)


def test_a_signature_tells_whether_something_was_changed(made: Made) -> None:
    layer = made.layer({"d": {"f": "f"}, "g": "g"})
    first = signature(layer)
    assert signature(layer) == first
    with open(layer / "d" / "f", "r+b") as file:
        file.write(b"x")
    os.utime(layer / "d" / "f", ns=(1, 1))
    second = signature(layer)
    assert second != first
    os.chmod(layer / "g", 0o600)
    assert signature(layer) not in (first, second)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="missing ability: root")
def test_owners_lists_and_capabilities(made: Made) -> None:
    layer = made.layer({"o": "o", "cap": "c", "d": {}})
    access = b"\2\0\0\0" + b"".join(
        tag.to_bytes(2, "little") + perm.to_bytes(2, "little") + who.to_bytes(4, "little")
        for tag, perm, who in [
            (1, 7, 0xFFFFFFFF), (2, 4, 33), (4, 5, 0xFFFFFFFF), (16, 5, 0xFFFFFFFF),
            (32, 0, 0xFFFFFFFF),
        ]
    )  # fmt: skip
    for name in ("o", "d"):
        os.chown(layer / name, 33, 42)
        os.chmod(layer / name, 0o2755)
        os.setxattr(layer / name, "system.posix_acl_access", access)
    os.setxattr(layer / "d", "system.posix_acl_default", access)
    (layer / "d" / "in").write_text("inherits")
    os.chown(layer / "cap", 33, 33)
    capability = b"\1\0\0\2" + b"\0\x20\0\0" + b"\0" * 12
    os.setxattr(layer / "cap", "security.capability", capability)
    copy_tree(layer, made.top / "copy", made.markers)
    same = Stack([made.top / "copy"], None, made.markers)
    assert changes(made.stack(), same) == []
    found = (made.top / "copy" / "o").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (33, 42, 0o2750)
    assert os.getxattr(made.top / "copy" / "cap", "security.capability") == capability
    assert changes(made.stack(), Stack([merged(made)], None, made.markers)) == []


def test_shown_is_what_is_shown(made: Made) -> None:
    made.base({"d": {"a": "a", "b": "b"}})
    made.layer({"d": {"a": GONE}})
    made.layer({"d": {"b": "2"}})
    before = shown(made.stack())
    target = merged(made)
    assert shown(Stack([target], made.top / "base", made.markers)) == before
