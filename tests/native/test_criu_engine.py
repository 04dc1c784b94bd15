"""The engine ``criu`` as a supervisor uses it, in real sandboxes: written, all killed, put back."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from native_build import need
from test_image_engine import freeze, new_sandbox, start, wake

from kernel_runtime.engines import criu_program
from kernel_runtime.engines.criu import CriuEngine
from kernel_runtime.engines.criu_program import CriuUnusable
from kernel_runtime.engines.fork import ForkEngine
from kernel_runtime.sandbox.base import InitClient
from kernel_runtime.sandbox.namespaces import NamespaceSandbox
from kernel_runtime.sandbox.none import NoSandbox
from kernel_runtime.store.dumps import DumpStore
from kernel_runtime.store.keys import Keys

pytestmark = pytest.mark.root


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tuple[CriuEngine, Path]]:
    try:
        criu_program.may_run()
        criu_program.find()
    except CriuUnusable as error:
        need(str(error))
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        store = DumpStore(tmp_path / "store", Keys(tmp_path / "keys"))
        yield CriuEngine(store, Path(folder)), Path(folder)


@pytest.mark.parametrize("kind", [NamespaceSandbox, NoSandbox])
def test_goes_on_in_another_sandbox(
    kind: type[InitClient], engine: tuple[CriuEngine, Path]
) -> None:
    images, folder = engine

    async def scenario() -> None:
        sandbox = await new_sandbox(kind)
        fork = ForkEngine(folder, keep_ids=sandbox.ids_kept)
        target = await start(sandbox, folder)
        pid = target.ask({"value": "os.getpid()"})
        frozen = await freeze(target, sandbox, folder, "first")
        written = await images.write(frozen, sandbox, details={"of": "first"})
        for turn in range(3):
            await sandbox.close()
            sandbox = await new_sandbox(kind)
            loaded = await images.load(written.ref, sandbox, checkpoint=frozen.checkpoint)
            target = await wake(fork, loaded)
            assert target.ask({"value": "next(half)"}) == 5 + turn
            assert target.ask({"value": "os.getpid()"}) == pid or not sandbox.ids_kept
            target.ask({"run": "task.result(20)"})
            counts = "[m := n, [time.sleep(.01) for _ in range(999) if n == m], n > m][2]"
            assert target.ask({"value": counts})
            frozen = await freeze(target, sandbox, folder, f"again{turn}")
            written = await images.write(frozen, sandbox)
            await fork.drop(loaded)
        await sandbox.close()

    asyncio.run(scenario())
