"""The rules of merging, one by one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from layers import GONE, Made, Opaque, shown

from kernel_runtime.engines.overlay.markers import TRUSTED, USER, Markers
from kernel_runtime.engines.overlay.stack import Stack


def test_the_newest_layer_decides_and_directories_merge(made: Made) -> None:
    made.base({"d": {"a": "0", "b": "0"}, "f": "0"})
    made.layer({"d": {"b": "1", "c": "1"}})
    made.layer({"d": {"c": "2"}, "f": "2"})
    assert shown(made.stack()) == {"d": None, "d/a": "0", "d/b": "1", "d/c": "2", "f": "2"}
    assert shown(made.stack(1)) == {"d": None, "d/a": "0", "d/b": "1", "d/c": "1", "f": "0"}


BELOW = {"d/e": None, "d/e/old": "0", "d/old": "0"}


@pytest.mark.parametrize(
    ("older", "newer", "expected"),
    [
        ({"d": {}}, {"d": {"n": "n"}}, {"d": None, "d/n": "n", **BELOW}),
        ({"d": GONE}, {}, {}),
        ({"d": GONE}, {"d": {"n": "n"}}, {"d": None, "d/n": "n"}),
        ({"d": Opaque()}, {}, {"d": None}),
        ({"d": Opaque(m="m")}, {"d": {"n": "n"}}, {"d": None, "d/m": "m", "d/n": "n"}),
        ({"d": "file"}, {}, {"d": "file"}),
        ({"d": "file"}, {"d": {"n": "n"}}, {"d": None, "d/n": "n"}),
        (
            {"d": {"e": GONE}},
            {"d": {"e": {"n": "n"}}},
            {"d": None, "d/e": None, "d/e/n": "n", "d/old": "0"},
        ),
        ({"d": {"e": "file"}}, {"d": {"e": GONE}}, {"d": None, "d/old": "0"}),
        ({"d": Path("e")}, {}, {"d": Path("e")}),
    ],
)
def test_what_stops_the_merge(made: Made, older: Any, newer: Any, expected: Any) -> None:
    made.base({"d": {"old": "0", "e": {"old": "0"}}})
    made.layer(older)
    made.layer(newer)
    assert shown(made.stack()) == expected


def test_a_hidden_path_of_the_base_is_not_there_but_a_layer_may_have_it(made: Made) -> None:
    made.base({"home": {"store": {"secret": "s"}, "f": "f"}})
    hidden = frozenset([b"home/store"])
    assert shown(made.stack(hidden=hidden)) == {"home": None, "home/f": "f"}
    assert made.stack(hidden=hidden).lookup(b"home/store/secret") is None
    made.layer({"home": {"store": {"own": "o"}}})
    assert shown(made.stack(hidden=hidden))["home/store/own"] == "o"
    assert "home/store/secret" not in shown(made.stack(hidden=hidden))


def test_no_symlink_is_followed_and_no_path_leads_out(made: Made) -> None:
    made.base({"d": {"f": "f"}, "l": Path("d"), "etc": Path("/etc")})
    stack = made.stack()
    assert stack.lookup(b"l/f") is None
    assert stack.lookup(b"etc/passwd") is None
    for bad in (b"../base", b"/d", b"d//f", b"d/.", b"d/"):
        with pytest.raises(ValueError, match="not a plain"):
            stack.lookup(bad)
    with pytest.raises(OSError, match="Invalid"):
        stack.read_bytes(b"l")
    with pytest.raises(NotADirectoryError):
        stack.listdir(b"l")
    with pytest.raises(FileNotFoundError):
        stack.read_bytes(b"none")


def test_where_something_was_found(made: Made) -> None:
    base = made.base({"f": "0", "d": {}})
    layer = made.layer({"d": {}, "g": "1"})
    stack = made.stack()
    found = [stack.lookup(name) for name in (b"f", b"g", b"d")]
    assert [what and what.from_base for what in found] == [True, False, False]
    assert [what and what.real for what in found] == [
        os.fsencode(base / "f"), os.fsencode(layer / "g"), os.fsencode(layer / "d"),
    ]  # fmt: skip
    assert found[2] is not None and len(found[2].merged) == 2


def test_a_layer_that_is_missing_is_an_error_and_not_an_empty_one(made: Made) -> None:
    made.base({})
    with pytest.raises(FileNotFoundError):
        Stack([made.top / "nowhere"], made.top / "base", made.markers)
    assert Stack([], None, USER).lookup(b"x") is None


def test_deletions_by_attribute(made: Made) -> None:
    made.base({"d": {"f": "f", "k": "k", "e": ""}})
    layer = made.layer({"d": {"f": "", "e": ""}})
    os.setxattr(layer / "d", made.markers.opaque, b"x")
    os.setxattr(layer / "d" / "f", made.markers.whiteout, b"")
    assert shown(made.stack()) == {"d": None, "d/k": "k", "d/e": ""}


def test_a_tree_of_any_depth(made: Made) -> None:
    made.base({})
    layer = made.layer({})
    here = os.open(layer, os.O_RDONLY)
    for _ in range(60):
        os.mkdir("n" * 200, dir_fd=here)
        below = os.open("n" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    with made.stack() as stack:
        assert sum(1 for _ in stack.walk()) == 61
        deep = b"/".join([b"n" * 200] * 60) + b"/f"
        found = stack.lookup(deep)
        assert found is not None and found.stat.st_size == 0
        assert stack.read_bytes(deep) == b""


def test_attributes_of_the_user_and_of_the_kernel(tmp_path: Path) -> None:
    place = os.fsencode(tmp_path / "f")
    Path(tmp_path / "f").touch()
    for name in ("opaque", "origin", "overlay.opaque", "overlay.overlay.x", "impure"):
        os.setxattr(place, f"user.overlay.{name}", b"y")
    os.setxattr(place, "user.note", b"n")
    assert USER.visible_attributes(place) == {
        "user.overlay.opaque": b"y", "user.overlay.overlay.x": b"y", "user.note": b"n",
    }  # fmt: skip
    assert USER.raw_attributes(place).keys() == {
        "user.overlay.overlay.opaque", "user.overlay.overlay.overlay.x", "user.note",
    }  # fmt: skip
    # with root's markers these are ordinary attributes
    assert len(TRUSTED.visible_attributes(place)) == 6


def test_files_called_like_dockers_markers_are_files(made: Made, markers: Markers) -> None:
    made.base({"test": "t", "app": {"test": "t"}})
    made.layer({".wh.test": "mine", "app": {".wh..wh..opq": "mine too"}})
    assert shown(made.stack()) == {
        "test": "t", "app": None, "app/test": "t", ".wh.test": "mine",
        "app/.wh..wh..opq": "mine too",
    }  # fmt: skip
    device = os.lstat("/dev/null")
    assert not markers.is_whiteout(device)
