"""Any sequence of file operations, captures, restores and restarts gives back every byte."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from environment_world import OWN, Environment, Held, run_as
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    rule,
    run_state_machine_as_test,
)
from overlay_world import look

from kernel_runtime.engines.overlay import engine as overlay_engine

NAMES = ["a", "b", "c\xff", "d\n,:\\"]
"""Nothing in them may matter, whatever mount(2) makes of such characters."""


def paths(deepest: int) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(NAMES), min_size=1, max_size=deepest).map(
        lambda parts: "/" + "/".join(parts)
    )


SHALLOW = paths(2)
PATHS = st.one_of(paths(1), SHALLOW, paths(3))
CONTENT = st.sampled_from(["", "one", "two", "x*5000", "y*200000"])
TIMES = st.sampled_from([1_000_000_000_123_456_789, 1_600_000_000_000_000_001])
MODES = st.sampled_from([0o755, 0o700, 0o775, 0o4755, 0o2711])
ATTRIBUTES = st.sampled_from(
    ["user.note", "user.overlay.opaque", "user.overlay.whiteout", "user.overlay.overlay.x"]
)
KINDS = st.sampled_from(["appends to", "appends to", "maps", "works in"])


def operations(*, root: bool) -> st.SearchStrategy[list[Any]]:
    kinds = [
        st.tuples(st.sampled_from(["write", "append", "replace"]), PATHS, CONTENT),
        st.tuples(st.just("mkdir"), SHALLOW),
        st.tuples(st.just("mkdir"), SHALLOW),
        st.tuples(st.sampled_from(["rmtree", "remake", "rmdir"]), SHALLOW),
        st.tuples(st.sampled_from(["unlink", "fifo", "other kind", "link out"]), PATHS),
        st.tuples(st.sampled_from(["rename", "rename", "link"]), PATHS, PATHS),
        st.tuples(st.just("symlink"), PATHS, st.sampled_from(["=a", "=../../..", "=b/../a"])),
        st.tuples(st.just("chmod"), PATHS, MODES),
        st.tuples(st.just("setxattr"), PATHS, ATTRIBUTES, st.sampled_from(["y", "x", ""])),
        st.tuples(st.just("removexattr"), PATHS, ATTRIBUTES),
        st.tuples(st.just("utime"), PATHS, TIMES),
        st.tuples(st.just("truncate"), PATHS, st.sampled_from([0, 3, 1 << 20])),
    ]
    if root:
        kinds.append(st.tuples(st.just("chown"), PATHS, st.just(1), st.just(2)))
        kinds.append(st.tuples(st.just("device"), PATHS))
    return st.lists(st.one_of(*kinds).map(list), min_size=1, max_size=8)


class Tree(RuleBasedStateMachine):
    """Operations that fail because of the tree's shape are no operations."""

    captures: Bundle[Held] = Bundle("captures")
    apart = False

    def __init__(self) -> None:
        super().__init__()
        self.world = Environment(apart=self.apart)
        self.held: list[Held] = []

    @initialize()
    def begin(self) -> None:
        world = self.world
        for directory in (world.E, world.W):
            for name in ("a/b", "b"):
                (directory / name).mkdir(parents=True)
            (directory / "a/a").write_text("base")
            os.link(directory / "a/a", directory / "a/linked")
            os.chmod(directory / "a/a", 0o640)
        world.start()
        self.host = look(os.fsencode(world.E))
        self.first = self.capture()

    def check(self, wanted: dict[str, Any]) -> None:
        seen = self.world.seen()
        if seen != wanted:
            names = sorted(n for n in seen.keys() | wanted.keys() if seen.get(n) != wanted.get(n))
            pytest.fail("\n".join(f"{n!r}: {wanted.get(n)} -> {seen.get(n)}" for n in names))

    @rule(ops=st.deferred(lambda: operations(root=os.geteuid() == 0)))
    def work(self, ops: list[Any]) -> None:
        self.world.ops(self.world.E, *ops)

    @rule(ops=operations(root=False))
    def work_in_workspace(self, ops: list[Any]) -> None:
        self.world.ops(self.world.W, *ops)

    @rule(ops=operations(root=False))
    def work_in_root_directory(self, ops: list[Any]) -> None:
        if os.geteuid() == 0:
            top = f"/{OWN}tree"
            self.world.ask("shell", code=f"os.makedirs({top!r}, exist_ok=True)")
            self.world.ops(top, *ops)

    @rule(kind=KINDS, path=PATHS)
    def hold(self, kind: str, path: str) -> None:
        self.world.ask("hold", top=str(self.world.E), kind=kind, path=path)

    @rule()
    def poke(self) -> None:
        wrong = self.world.ask("poke")
        assert not wrong, wrong

    @rule(target=captures, between=st.booleans())
    def capture(self, between: bool = True) -> Held:
        before = self.world.seen()
        held = self.world.capture()
        assert held.seen == before, "a capture has changed what is seen"
        self.held.append(held)
        if between:
            self.poke()
        return held

    @rule(held=captures)
    def restore(self, held: Held) -> None:
        inside = self.world.ask("look", top=str(self.world.W))
        self.world.restore(held)
        self.check(held.seen)
        assert self.world.ask("look", top=str(self.world.W)) == inside
        assert self.world.do(self._is_at(held))

    async def _is_at(self, held: Held) -> bool:
        return bool(self.world.engine.is_at(held.captured.stacks, held.captured.root_layer))

    @rule(where=st.randoms(use_true_random=False))
    def merge(self, where: random.Random) -> None:
        engine = self.world.engine
        root = self.world.root
        stack = engine.state.stacks.get(root, [])
        if len(stack) < 2:
            return
        first = where.randrange(len(stack) - 1)
        last = where.randrange(first + 1, len(stack))
        before = self.world.seen()
        self.world.do(engine.merge(root, stack[first : last + 1]))
        assert self.world.seen() == before

    @rule()
    def upkeep(self) -> None:
        engine = self.world.engine
        self.world.do(engine.upkeep([held.captured.stacks for held in self.held]))

    @rule()
    def rewrite(self) -> None:
        """Checkpoints name merged layers instead of those that they stand for."""
        engine = self.world.engine
        for held in self.held:
            held.captured.stacks = engine.rewritten(held.captured.stacks)

    @rule(held=consumes(captures))
    def prune(self, held: Held) -> None:
        self.held.remove(held)
        self.world.do(self.world.engine.collect(self.world.referenced(self.held)))

    @rule(killed=st.booleans())
    def restart(self, killed: bool) -> None:
        self.world.end_all()
        before = self.world.seen()
        self.world.restart(self.world.referenced(self.held), killed=killed)
        self.check(before)

    def teardown(self) -> None:
        try:
            if self.world.sandbox is not None and self.held:
                assert look(os.fsencode(self.world.E)) == self.host
                inside = self.world.ask("look", top=str(self.world.W))
                outside = look(os.fsencode(self.world.W))
                assert {k: v[:8] for k, v in inside.items()} == outside
                for held in self.held:
                    self.world.restore(held)
                    self.check(held.seen)
                self._nothing_is_left()
        finally:
            self.world.close()

    def _nothing_is_left(self) -> None:
        engine, referenced = self.world.engine, self.world.referenced(self.held)
        self.world.do(engine.collect(referenced))
        wanted = {layer for stack in engine.state.stacks.values() for layer in stack}
        wanted |= {*engine.state.uppers.values(), engine.state.root_layer, *referenced} - {""}
        wanted = wanted.union(*engine._mounted.values())
        assert set(self.world.layers()) == wanted
        for layer in wanted:
            assert set(os.listdir(self.world.directory / "layers" / layer)) <= {"files", "work"}


WHO = [pytest.param("root", marks=pytest.mark.root), "user"]


@pytest.mark.parametrize("apart", [False, True], ids=["within", "apart"])
@pytest.mark.parametrize("who", WHO)
def test_any_sequence(who: str, apart: bool, ability: Callable[[str, bool], None]) -> None:
    ability("root", who == "user" or os.geteuid() == 0)
    run_as(who, lambda: run(8, 30, apart))


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("apart", [False, True], ids=["within", "apart"])
@pytest.mark.parametrize("who", WHO)
def test_many_long_sequences(who: str, apart: bool, ability: Callable[[str, bool], None]) -> None:
    ability("root", who == "user" or os.geteuid() == 0)
    run_as(who, lambda: run(int(os.environ.get("TT_EXAMPLES", "8")), 60, apart))


def run(examples: int, steps: int, apart: bool) -> None:
    # stacks that a test can make are short
    overlay_engine.DEEP, overlay_engine._WORTH_MERGING = 12, 2
    machine = type("Machine", (Tree,), {"apart": apart})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, database=None,
            suppress_health_check=list(HealthCheck), derandomize=examples < 10, print_blob=True,
        ),
    )  # fmt: skip
