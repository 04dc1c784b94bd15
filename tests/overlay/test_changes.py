"""What a layer says, and what differs between stacks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from layers import GONE, Made, Opaque

from kernel_runtime.engines.overlay.changes import (
    Change,
    Summary,
    changes,
    differing_layers,
    summary,
    touched,
)


def told(made: Made, before: int, after: int) -> list[tuple[bytes, str]]:
    return [(c.path, c.kind) for c in changes(made.stack(before), made.stack(after))]


def test_each_kind_in_both_directions(made: Made) -> None:
    made.base({"keep": "k", "gone": "12345", "new": "old", "d": {"x": "x", "y": {"z": "z"}}})
    made.layer({"gone": GONE, "new": "longer", "made": {"f": "f"}, "d": {"y": GONE}})
    assert list(changes(made.stack(0), made.stack(1))) == [
        Change(b"d/y", "deleted", None, None, True),
        Change(b"d/y/z", "deleted", 1, None, False),
        Change(b"gone", "deleted", 5, None, False),
        Change(b"made", "created", None, None, True),
        Change(b"made/f", "created", None, 1, False),
        Change(b"new", "changed", 3, 6, False),
    ]
    assert told(made, 1, 0) == [
        (b"d/y", "created"), (b"d/y/z", "created"), (b"gone", "created"),
        (b"made", "deleted"), (b"made/f", "deleted"), (b"new", "changed"),
    ]  # fmt: skip
    assert told(made, 1, 1) == []


def test_a_directory_made_anew_lost_what_it_held(made: Made) -> None:
    made.base({"d": {"old": "o", "same": "s"}})
    made.layer({"d": Opaque(same="s", new="n")})
    for place in (made.top / "base" / "d" / "same", made.layers[0] / "d" / "same"):
        os.utime(place, ns=(5, 5))
    assert told(made, 0, 1) == [(b"d/new", "created"), (b"d/old", "deleted")]


def test_what_came_and_went_between_is_no_change(made: Made) -> None:
    made.base({"d": {}})
    made.layer({"d": {"t": "t"}, "e": {"t": "t"}})
    made.layer({"d": {"t": GONE}, "e": GONE})
    assert told(made, 0, 2) == []
    assert told(made, 1, 2) == [(b"d/t", "deleted"), (b"e", "deleted"), (b"e/t", "deleted")]


def test_metadata_is_told_apart_and_copies_are_no_change(made: Made) -> None:
    base = made.base({"f": "f", "g": "g", "h": "h", "d": {}})
    layer = made.layer({})
    for name in "fgh":
        shutil.copy2(base / name, layer / name)
    (layer / "d").mkdir()
    os.chmod(layer / "d", 0o700)
    os.chmod(layer / "f", 0o600)
    os.setxattr(layer / "g", "user.k", b"v")
    assert told(made, 0, 1) == [(b"d", "metadata"), (b"f", "metadata"), (b"g", "metadata")]


def test_equal_size_and_time_but_other_bytes(made: Made) -> None:
    base = made.base({"f": "one"})
    layer = made.layer({"f": "two"})
    for place in (base, layer):
        os.utime(place / "f", ns=(7, 7))
    assert told(made, 0, 1) == [(b"f", "changed")]
    blind = changes(made.stack(0), made.stack(1), compared_bytes=2)
    assert list(blind) == []


def test_types_that_change_take_their_tree_along(made: Made) -> None:
    made.base({"d": {"x": "x"}, "f": "f"})
    made.layer({"d": "now a file", "f": {"y": "y"}})
    assert told(made, 0, 1) == [
        (b"d", "changed"), (b"d/x", "deleted"), (b"f", "changed"), (b"f/y", "created"),
    ]  # fmt: skip


def test_no_more_than_asked_for(made: Made) -> None:
    made.base({"d": {str(n): "" for n in range(50)}})
    made.layer({"d": GONE})
    some = changes(made.stack(0), made.stack(1), most=10)
    assert len(some) == 10 and not some.complete
    assert changes(made.stack(0), made.stack(1), most=51).complete


def test_only_what_differs_is_looked_at(made: Made) -> None:
    made.base({})
    layers = [made.layer({str(n): "x"}) for n in range(4)]
    one, other = made.stack(2), made.stack(4)
    assert set(differing_layers(one, other)) == set(layers[2:])
    with pytest.raises(ValueError, match="same base"):
        differing_layers(one, made.stack(4, hidden=frozenset([b"x"])))


@pytest.mark.skipif(os.geteuid() == 0, reason="missing ability: being refused")
def test_a_directory_that_may_not_be_read_is_said(made: Made) -> None:
    made.base({})
    layer = made.layer({"d": {"f": "f"}, "e": "e"})
    os.chmod(layer / "d", 0)
    try:
        found = changes(made.stack(0), made.stack(1))
        assert [c.path for c in found] == [b"d", b"e"] and not found.complete
    finally:
        os.chmod(layer / "d", 0o700)


def test_what_a_layer_says(made: Made) -> None:
    layer = made.layer({"d": Opaque(f="x" * 5000), "g": GONE, "l": Path("d")})
    os.link(layer / "d" / "f", layer / "hard")
    said = {t.path: (t.deleted, t.opaque) for t in touched(layer, made.markers)}
    assert said == {
        b"d": (False, True), b"d/f": (False, False), b"g": (True, False), b"l": (False, False),
        b"hard": (False, False),
    }  # fmt: skip
    blocks = sum((layer / name).lstat().st_blocks for name in ("d", "d/f", "l"))
    assert summary(layer, made.markers) == Summary(4, blocks * 512, 1)
