"""Captures and merges that fail half way: nothing is lost, nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from environment_world import Environment, run_as

from kernel_runtime.engines.overlay.plan import _directories
from kernel_runtime.errors import SandboxError

MIB = 1 << 20


@pytest.fixture
def small(tmp_path: Path, ability: Callable[[str, bool], None]) -> Iterator[Path]:
    """A store of 40 MiB."""
    ability("root", os.geteuid() == 0)
    store = tmp_path / "store"
    store.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(store)]
    ability("mount tmpfs", subprocess.run(command, check=False).returncode == 0)
    yield store
    subprocess.run(["umount", "-l", str(store)], check=True)


@contextlib.contextmanager
def started(store: Path | None = None) -> Iterator[Environment]:
    """With two roots, of which the one that E is in comes last."""
    world = Environment(store=store)
    try:
        (world.E / "d").mkdir()
        world.start(children=lambda path: ["srv", "var"] if path == "/" else _directories(path))
        yield world
    finally:
        world.close()


@pytest.mark.root
@pytest.mark.parametrize("kind", ["appends to", "works in"])
def test_no_room_for_the_copy_of_one_root(small, kind):
    def work() -> None:
        with started(small) as world:
            first = world.capture()
            world.ops("/srv", ["write", "/one", "1"])
            world.ops(world.E, ["write", "/d/f", "x*12000000"])
            path = "/d/f" if kind == "appends to" else "/d"
            assert world.ask("hold", top=str(world.E), kind=kind, path=path)
            spare = os.statvfs(small).f_bavail * 4096 - 4 * MIB
            (small / "spare").write_bytes(bytes(spare))
            before = world.seen()
            layers = set(world.layers())
            with pytest.raises(SandboxError, match="No space left"):
                world.capture()
            # the other root is captured all the same
            made = set(world.layers()) - layers
            assert made == {world.engine.state.uppers["/srv"]}
            assert world.seen() == before
            assert world.ask("poke") == []
            os.unlink(small / "spare")
            second = world.capture()
            assert len(second.captured.stacks["/srv"]) == 1
            assert world.ask("poke") == []
            for held in (first, second):
                world.restore(held)
                assert world.seen() == held.seen
                there = world.ask("shell", code="result = os.path.exists('/srv/one')")
                assert there is (held is second)
            world.restart(world.referenced([first, second]))
            world.restore(second)
            assert world.seen() == second.seen

    run_as("root", work)


@pytest.mark.root
def test_no_room_for_what_lies_in_the_root_directory(small):
    def work() -> None:
        with started(small) as world:
            world.ops("/", ["mkdir", "/tt_d"], ["write", "/tt_d/f", "x*3000000"])
            first = world.capture()
            world.ops("/", ["write", "/tt_d/g", "y*9000000"], ["write", "/srv/x", "x"])
            spare = os.statvfs(small).f_bavail * 4096 - 4 * MIB
            (small / "spare").write_bytes(bytes(spare))
            layers = world.layers()
            with pytest.raises(SandboxError, match="No space left"):
                world.capture()
            assert world.layers() == layers
            os.unlink(small / "spare")
            second = world.capture()
            (small / "spare").write_bytes(bytes(os.statvfs(small).f_bavail * 4096 - 2 * MIB))
            with pytest.raises(SandboxError, match="No space left"):
                world.restore(first)
            assert world.seen() == second.seen
            os.unlink(small / "spare")
            for held in (first, second):
                world.restore(held)
                assert world.seen() == held.seen

    run_as("root", work)


def test_a_merge_that_is_cut_off(ability):
    def work() -> None:
        with started() as world:
            helds = []
            for number in range(6):
                world.ops(world.E, *[["write", f"/{number}-{n}", "x"] for n in range(300)])
                helds.append(world.capture())
            engine = world.engine
            run = list(engine.state.stacks[world.root])
            world.end_all()

            async def cut_off() -> None:
                merging = asyncio.ensure_future(engine.merge(world.root, run))
                await asyncio.sleep(0.01)
                os.kill(world.sandbox._pid, signal.SIGKILL)
                with contextlib.suppress(SandboxError):  # on a busy machine it may be done by then
                    await merging

            world.do(cut_off())
            world.restart(world.referenced(helds), killed=True)
            assert world.seen() == helds[-1].seen
            used = {*world.referenced(helds), *engine.state.names(), *world.engine.state.names()}
            assert set(world.layers()) <= used
            world.restore(helds[0])
            assert world.seen() == helds[0].seen

    run_as("user", work)


@pytest.mark.parametrize("synced", [True, False], ids=["synced", "not synced"])
def test_the_power_fails_after_a_merge(synced):
    """The layers that were merged are on the disk; the one that they became may not be."""

    def work() -> None:
        with started() as world:
            helds = []
            for number in range(4):
                world.ops(world.E, ["write", f"/{number}", "x"])
                helds.append(world.capture())
            engine = world.engine
            world.do(engine.sync())
            new = world.do(engine.merge(world.root, engine.state.stacks[world.root][:3]))
            if synced:
                world.do(engine.sync())
            state = json.loads((world.directory / "state.json").read_text())
            lost = json.dumps({**state, "boot": "another"})
            world._leave()
            os.kill(world.sandbox._pid, signal.SIGKILL)
            world.do(world.sandbox.close())
            (world.directory / "state.json").write_text(lost)
            world.start()
            assert (new in world.engine.state.stacks[world.root]) is synced
            assert world.root not in world.told
            assert world.seen() == helds[-1].seen
            for held in helds:
                world.restore(held)
                assert world.seen() == held.seen

    run_as("user", work)


def test_layers_that_are_merged_stay_while_they_are_mounted():
    """A mount goes on with the layers that it was made of."""

    def work() -> None:
        with started() as world:
            helds = []
            for number in range(4):
                world.ops(world.E, ["write", f"/{number}", "x"])
                helds.append(world.capture())
            engine = world.engine
            world.do(engine.merge(world.root, list(engine.state.stacks[world.root])))
            for held in helds:
                held.captured.stacks = engine.rewritten(held.captured.stacks)
            last = helds[-1]
            world.do(engine.collect(world.referenced([last])))
            assert world.seen() == last.seen
            world.ops(world.E, ["write", "/more", "x"])
            more = world.capture()
            world.do(engine.collect(world.referenced([last, more])))
            assert world.seen() == more.seen
            # now they are gone
            assert len(world.layers()) == len({*world.referenced([last, more]),
                                               *engine.state.uppers.values()})  # fmt: skip
            world.restore(last)
            assert world.seen() == last.seen

    run_as("user", work)
