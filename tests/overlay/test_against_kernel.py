"""What is said without mounting is what the kernel shows: every byte, mode, time, attribute."""

from __future__ import annotations

import os
import random
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from overlay_world import World, entry, raw, text
from signatures import signature

from kernel_runtime.engines.overlay.changes import Change, changes, touched
from kernel_runtime.engines.overlay.copying import copy_tree
from kernel_runtime.engines.overlay.entries import remove
from kernel_runtime.engines.overlay.markers import Markers
from kernel_runtime.engines.overlay.merge import merge
from kernel_runtime.engines.overlay.stack import Stack

NAMES = ["a", "b", "c\xff"]
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(lambda p: "/" + "/".join(p))
SHALLOW = st.lists(st.sampled_from(NAMES), min_size=1, max_size=2).map(lambda p: "/" + "/".join(p))
CONTENT = st.sampled_from(["", "one", "two", "x" * 5000])
TIMES = st.sampled_from([1_000_000_000_123_456_789, 1_600_000_000_000_000_001])
ATTRIBUTES = st.sampled_from(
    ["user.note"]
    + [
        f"{kind}.overlay.{name}"
        for kind in ("user", "trusted")
        for name in ("opaque", "whiteout", "overlay.x")
    ]
)


def operations(*, base: bool = False) -> st.SearchStrategy[list[Any]]:
    attributes = st.just("user.note") if base else ATTRIBUTES
    return st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["write", "append", "replace"]), PATHS, CONTENT),
            st.tuples(st.just("mkdir"), SHALLOW),
            st.tuples(st.just("mkdir"), SHALLOW),
            st.tuples(st.sampled_from(["rmtree", "remake", "rmdir"]), SHALLOW),
            st.tuples(st.sampled_from(["unlink", "fifo"]), PATHS),
            st.tuples(st.sampled_from(["rename", "link"]), PATHS, PATHS),
            st.tuples(
                st.just("symlink"), PATHS, st.sampled_from(["=a", "=/proc/nowhere", "=b/../a"])
            ),
            st.tuples(st.just("chmod"), PATHS, st.sampled_from([0o755, 0o700, 0o775])),
            st.tuples(st.just("setxattr"), PATHS, attributes, st.sampled_from(["y", "x", ""])),
            st.tuples(st.just("removexattr"), PATHS, attributes),
            st.tuples(st.just("utime"), PATHS, TIMES),
            st.tuples(st.just("truncate"), PATHS, st.sampled_from([0, 3])),
        ).map(list),
        min_size=12 if base else 1,
        max_size=30 if base else 10,
    )


GENERATIONS = st.lists(operations(), min_size=2, max_size=4)
FIRST = [
    ["mkdir", "/a"], ["mkdir", "/b"], ["mkdir", "/a/b"], ["write", "/a/a", "base"],
    ["write", "/b/a", "base"], ["write", "/a/b/a", "one"],
]  # fmt: skip


def view(stack: Stack) -> dict[str, Any]:
    found = stack.root()
    assert found is not None
    seen = {"": entry(found.real, found.stat, stack.attributes(found))}
    for path, found in stack.walk():
        assert stack.lookup(path) == found
        seen[text(path)] = entry(found.real, found.stat, stack.attributes(found))
    return seen


def expected(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[bytes, str]]:
    """The differences of two views, found by looking at all of both."""
    found = []
    for path in before.keys() | after.keys():
        old, new = before.get(path), after.get(path)
        if old is None or new is None:
            found.append((raw(path), "created" if old is None else "deleted"))
        elif stat.S_IFMT(old[0]) != stat.S_IFMT(new[0]) or old[4:7] != new[4:7]:
            found.append((raw(path), "changed"))
        elif stat.S_ISDIR(new[0]):
            if old[:3] + old[7:] != new[:3] + new[7:]:
                found.append((raw(path), "metadata"))
        elif old != new:
            found.append((raw(path), "metadata"))
    return sorted(found)


def told(found: list[Change]) -> list[tuple[bytes, str]]:
    return sorted((change.path, change.kind) for change in found)


class Run:
    """Generations of one random program."""

    def __init__(self, world: World, top: Path, base: list[Any], gens: list[Any]) -> None:
        self.world, self.top = world, top
        (top / "base").mkdir()
        world.plain(top / "base", [*FIRST, *base])
        self.layers: list[str] = []
        self.views = [world.seen(top, [])]
        for number, ops in enumerate(gens, 1):
            name = f"g{number}"
            self.views.append(world.generation(top, self.layers, name, ops))
            self.layers.insert(0, name)

    def files(self, name: str) -> Path:
        return self.top / name / "files"

    def stack(self, layers: list[str], markers: Markers) -> Stack:
        return Stack([self.files(name) for name in layers], self.top / "base", markers)

    def at(self, generation: int, markers: Markers) -> Stack:
        return self.stack(self.layers[len(self.layers) - generation :], markers)


@pytest.mark.parametrize("part", range(3))
def test_random_programs(world: World, markers: Markers, part: int) -> None:
    @settings(
        max_examples=int(os.environ.get("TT_EXAMPLES", "40")),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(operations(base=True), GENERATIONS, st.randoms(use_true_random=False))
    def check(base: list[Any], gens: list[Any], rng: random.Random) -> None:
        top = Path(tempfile.mkdtemp(prefix="ttoverlay-"))
        try:
            first = rng.randrange(len(gens))
            last = rng.randrange(first, len(gens))
            check_one(Run(world, top, base, gens), markers, first, last, rng.randrange(len(gens)))
        finally:
            remove(os.fsencode(top))

    check()


SAME_TIME = 1_600_000_000_000_000_001

PROGRAMS: list[list[list[Any]]] = [
    # deleted, and made again later: what lay below must stay hidden
    [[["rmtree", "/b"]], [["mkdir", "/b"], ["write", "/b/new", "n"]]],
    [[["rmtree", "/a/b"]], [["mkdir", "/a/b"]], [["write", "/a/b/new", "n"]]],
    [[["rmtree", "/b"], ["write", "/b", "a file"]], [["unlink", "/b"], ["mkdir", "/b"]]],
    # only in layers, and something deleted in it: a whiteout must not show
    [[["mkdir", "/n"], ["write", "/n/x", "x"], ["write", "/n/y", "y"]], [["unlink", "/n/x"]]],
    [[["mkdir", "/n"], ["mkdir", "/n/m"]], [["rmtree", "/n/m"]], [["mkdir", "/n/m"]]],
    # made anew in one go
    [[["remake", "/a"]], [["mkdir", "/a/b"]]],
    [[["remake", "/a"], ["write", "/a/x", "x"]], [["unlink", "/a/x"]], [["rmtree", "/a"]]],
    # the same size and time, other bytes; and the same bytes at another time
    [
        [["write", "/x", "one"], ["utime", "/x", SAME_TIME]],
        [["write", "/x", "two"], ["utime", "/x", SAME_TIME]],
        [["utime", "/a/a", SAME_TIME]],
    ],
    # only metadata of what the base has
    [[["chmod", "/a", 0o700], ["setxattr", "/b", "user.note", "n"]], [["chmod", "/a", 0o755]]],
    [[["link", "/a/a", "/b/hard"]], [["append", "/b/hard", "more"]], [["unlink", "/a/a"]]],
    [[["rename", "/a/a", "/a/z"]], [["rename", "/a/z", "/b/a"]], [["rename", "/b/a", "/a/a"]]],
]


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_known_programs(world: World, markers: Markers, tmp_path: Path, number: int) -> None:
    gens = PROGRAMS[number]
    for first in range(len(gens)):
        for last in range(first, len(gens)):
            top = tmp_path / f"{first}-{last}"
            top.mkdir()
            check_one(Run(world, top, [], gens), markers, first, last, first)


def check_one(run: Run, markers: Markers, first: int, last: int, copied_one: int) -> None:
    """first, last: the layers that are merged, counted from the newest."""
    count = len(run.layers)
    for generation in range(count + 1):
        assert view(run.at(generation, markers)) == run.views[generation]
    for before in range(count + 1):
        for after in range(count + 1):
            found = changes(run.at(before, markers), run.at(after, markers))
            assert found.complete
            assert told(found) == expected(run.views[before], run.views[after])

    # a few neighbours made one; the stack shows the same, and the kernel agrees
    merged = run.layers[first : last + 1]
    (run.top / "m").mkdir()
    merge([run.files(n) for n in merged], run.files("m"), markers, durable=False)
    shorter = [*run.layers[:first], "m", *run.layers[last + 1 :]]
    assert view(run.stack(shorter, markers)) == run.views[-1]
    assert run.world.seen(run.top, shorter) == run.views[-1]
    assert changes(run.at(count, markers), run.stack(shorter, markers)) == []
    lower = [*run.layers[last + 1 :]]
    assert run.world.seen(run.top, ["m", *lower]) == run.views[count - first]

    # a copy of a layer is as good as the layer
    (run.top / "k").mkdir()
    copied = run.layers[copied_one]
    before_copy = signature(run.files(copied))
    copy_tree(run.files(copied), run.files("k"), markers)
    assert signature(run.files(copied)) == before_copy
    swapped = ["k" if name == copied else name for name in run.layers]
    assert run.world.seen(run.top, swapped) == run.views[-1]
    assert changes(run.at(count, markers), run.stack(swapped, markers)) == []

    # all of them with nothing below
    os.rename(run.top / "base", run.top / "old")
    (run.top / "base").mkdir()
    alone = [run.files(name) for name in run.layers]
    (run.top / "z").mkdir()
    merge(alone, run.files("z"), markers, bottom=True, durable=False)
    shown = run.world.seen(run.top, run.layers)
    assert run.world.seen(run.top, ["z"]) == shown
    assert view(Stack([run.files("z")], None, markers)) == shown
    assert not any(entry.deleted or entry.opaque for entry in touched(run.files("z"), markers))
