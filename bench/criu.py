"""What an exact image costs over the engines `criu` and `image`, against bare CRIU.

    python bench/criu.py [SIZE_MIB ...]

As root. For each size a process with an array of random bytes and polars loaded. Bare: the process
itself, which has closed every descriptor from outside, dumped and restored by CRIU until that has
ended. Ours: a frozen process of the same program, from the request until the image is durable and
signed; and with everything killed, in a new sandbox, until it is a frozen process again, and until
a woken one has answered. Medians of several rounds that take turns, in milliseconds. `fsync`: how
long it takes to write out the bare dump, which CRIU does not do and we do. Ours is written at a low
priority, so the bare dump is here, too: on a busy machine both wait for the others. `first`: the
first image of a store, which has neither digests nor copies of libraries; the others are of kernels
of their own. `copies`: how long after that image these are all there; nothing else is timed then.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "native")]

import native_build  # noqa: E402
import test_image_engine as world  # noqa: E402

from kernel_runtime.engines import criu_program  # noqa: E402
from kernel_runtime.engines import image as image_module  # noqa: E402
from kernel_runtime.engines.criu import _NICE, CriuEngine  # noqa: E402
from kernel_runtime.engines.criu_program import Run  # noqa: E402
from kernel_runtime.engines.fork import ForkEngine  # noqa: E402
from kernel_runtime.engines.image import ImageEngine  # noqa: E402
from kernel_runtime.sandbox.namespaces import NamespaceSandbox  # noqa: E402
from kernel_runtime.store import dumps, images  # noqa: E402
from kernel_runtime.store.dumps import DumpStore  # noqa: E402
from kernel_runtime.store.images import ImageStore  # noqa: E402
from kernel_runtime.store.keys import Keys  # noqa: E402
from kernel_runtime.store.paths import sync  # noqa: E402

ROUNDS = 5
STATE = """
import os, polars
data = bytearray(os.urandom(1 << 20)) * {mib}
for at in range(0, len(data), 4096):
    data[at:at + 8] = at.to_bytes(8, "little")
polars.DataFrame({{"a": range(1000)}}).select(polars.col("a").sum())
"""
BARE = "import time; os.closerange(0, 3); os.close(3); time.sleep(3600)"
SERVED = "import native_target; native_target.serve(globals())"

Times = dict[str, list[float]]


async def timed(times: Times, name: str, work: Awaitable[Any]) -> Any:
    started = time.perf_counter()
    result = await work
    times.setdefault(name, []).append((time.perf_counter() - started) * 1e3)
    return result


async def bare(times: Times, mib: int, folder: Path) -> None:
    run, written = criu_program.find(), folder / "bare"
    written.mkdir()
    sandbox = await world.new_sandbox(NamespaceSandbox)
    ready, closed = os.pipe()
    with open(ready, "rb") as pipe:
        with open(closed, "wb"):
            code = STATE.format(mib=mib) + BARE
            pid = await sandbox.spawn(
                [sys.executable, "-c", code], dict(os.environ), "/", {3: closed}
            )
        await asyncio.to_thread(pipe.read)
    dump = ["dump", "--tree", str(pid)]
    await timed(times, "bare dump", Run(run, sandbox)(dump, written, timeout=300, nice=_NICE))
    started = time.perf_counter()
    for path in written.iterdir():
        sync(path)
    times.setdefault("fsync", []).append((time.perf_counter() - started) * 1e3)
    await sandbox.close()
    sandbox = await world.new_sandbox(NamespaceSandbox)
    restore = ["restore", "--restore-detached"]
    await timed(
        times, "bare restore", Run(run, sandbox)(restore, written, timeout=300, past_id=pid + 64)
    )
    assert pid in (await sandbox.request("list"))["pids"]
    await sandbox.close()
    shutil.rmtree(written)


async def ours(times: Times, mib: int, folder: Path, engine: CriuEngine | ImageEngine) -> None:
    world.SETUP = STATE.format(mib=mib) + "n = 0\n" + SERVED
    sandbox = await world.new_sandbox(NamespaceSandbox)
    target = await world.start(sandbox, folder)
    frozen = await world.freeze(target, sandbox, folder, f"f{time.monotonic_ns()}")
    first = "" if f"{engine.name} first" in times else "first"
    written = await timed(times, f"{engine.name} {first or 'write'}", engine.write(frozen, sandbox))
    if first and isinstance(engine, CriuEngine):
        await timed(times, "criu copies", engine.all_copied())
    times.setdefault(f"{engine.name} MB", []).append(written.stored_bytes / 1e6)
    await sandbox.close()
    sandbox = await world.new_sandbox(NamespaceSandbox)
    started = time.perf_counter()
    load = engine.load(written.ref, sandbox, checkpoint="x")
    loaded = await timed(times, f"{engine.name} load", load)
    woken = await world.wake(ForkEngine(folder, keep_ids=True), loaded)
    assert woken.ask({"value": "data[4096]"}) == 0
    times.setdefault(f"{engine.name} answer", []).append((time.perf_counter() - started) * 1e3)
    await sandbox.close()


async def measure(mib: int, folder: Path) -> dict[str, float]:
    times: Times = {}
    keys = Keys(folder / "keys")
    for turn in range(ROUNDS + 1):
        place = folder / str(turn)
        place.mkdir()
        await bare(times, mib, place)
        engine = CriuEngine(DumpStore(folder, keys), place)
        await ours(times, mib, place, engine)
        await engine.close(60)
        await ours(times, mib, place, ImageEngine(ImageStore(folder, keys), place))
        for kept in (*(folder / dumps.FOLDER).iterdir(), *(folder / images.FOLDER).iterdir()):
            if kept.is_dir():  # not what the next kernel finds
                shutil.rmtree(kept)
        shutil.rmtree(place)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    image_module.LOADER = native_build.built_loader()
    for mib in [int(a) for a in sys.argv[1:]] or [20, 1024]:
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            row = asyncio.run(measure(mib, Path(folder)))
        print(f"{mib} MiB")
        for name, value in row.items():
            print(f"  {name:14} {value:10.1f}")
        criu = row["criu write"]
        print(f"  criu write / bare dump             {criu / row['bare dump']:6.2f}")
        print(
            f"  criu write / (bare dump and fsync) {criu / (row['bare dump'] + row['fsync']):6.2f}"
        )
        print(
            f"  criu first / (bare dump and fsync) "
            f"{row['criu first'] / (row['bare dump'] + row['fsync']):6.2f}"
        )
        print(f"  criu load / bare restore           {row['criu load'] / row['bare restore']:6.2f}")
        print(
            f"  image load / bare restore          {row['image load'] / row['bare restore']:6.2f}"
        )
    native_build.clean_up()


if __name__ == "__main__":
    main()
