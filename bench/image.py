"""What a process image costs, against copying and hashing, and a restore against a fresh kernel.

    python bench/image.py [--encrypted] [SIZE_MIB ...]

For each size, a session with an array of random bytes and polars loaded: writing its image next to
copying and hashing as many bytes (BLAKE2b, one thread); the first image of another kernel of the
store, which knows the digests of libraries; the second image, after 10 MB were changed;
and, with everything killed, the time from a new sandbox to the first answer of the process, next to
the start of a stock ipykernel until it has answered. Medians where there are several; all in one
run. The writer has a low priority: on a busy machine it waits for the others, so processor
time is shown too: of the thread that takes the image in, and of copying and hashing in one. What
the writing process itself takes comes on top, a third of a second for each GB. --encrypted: in an
encrypted store. Needs cc.
"""

from __future__ import annotations

import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from hashlib import blake2b

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "native"))

import native_build  # noqa: E402
from image_tools import Images  # noqa: E402
from jupyter_client.manager import start_new_kernel  # noqa: E402
from native_harness import World  # noqa: E402

from kernel_runtime.engines.mapped_files import FileDigests  # noqa: E402
from kernel_runtime.store import encryption  # noqa: E402
from kernel_runtime.store.encryption import Secret  # noqa: E402
from kernel_runtime.store.images import ImageStore  # noqa: E402
from kernel_runtime.store.keys import Keys  # noqa: E402

ROUNDS = 5
CHANGED = 10 << 20
SETUP = """
import os, polars
data = bytearray(os.urandom(1 << 20)) * {mib}
for at in range(0, len(data), 4096):
    data[at:at + 8] = at.to_bytes(8, "little")
"""


def seconds(what: Callable[[], object]) -> float:
    started = time.perf_counter()
    what()
    return time.perf_counter() - started


def copy_and_hash(size: int) -> float:
    piece = os.urandom(16 << 20)
    to = bytearray(len(piece))

    def once() -> None:
        to[:] = piece
        blake2b(to, digest_size=32).digest()

    started = time.thread_time()
    for _ in range(ROUNDS):
        once()
    return (time.thread_time() - started) / ROUNDS * size / len(piece)


def fresh_kernel() -> float:
    def once() -> None:
        manager, client = start_new_kernel(kernel_name="python3")
        client.execute("1", reply=True)
        client.stop_channels()
        managers.append(manager)

    managers: list[object] = []
    took = statistics.median(seconds(once) for _ in range(ROUNDS))
    for manager in managers:
        manager.shutdown_kernel(now=True)  # type: ignore[attr-defined]
    return took


def measure(mib: int, images: Images) -> dict[str, float]:
    """One row of the table; seconds and MB."""
    world = native_build.make_world("user")
    live = world.start(SETUP.format(mib=mib))
    frozen = live.freeze()
    started, cpu = time.perf_counter(), time.thread_time()
    first = images.write(frozen)
    writing, cpu = time.perf_counter() - started, time.thread_time() - cpu
    # what the first image of the next kernel costs: the libraries are known by then
    images.files.save()
    images.files = FileDigests(ImageStore(images.folder, Keys(images.folder / "keys")).file_digests)
    next_cpu = time.thread_time()
    images.write(frozen)
    next_cpu = time.thread_time() - next_cpu
    frozen.quit()
    live.run(f"data[1 << 20:{(1 << 20) + CHANGED}] = os.urandom({CHANGED})")
    frozen = live.freeze()
    started, more_cpu = time.perf_counter(), time.thread_time()
    second = images.write(frozen, first)
    again, more_cpu = time.perf_counter() - started, time.thread_time() - more_cpu
    world.close()
    return {
        "write": writing,
        "cpu": cpu,
        "next cpu": next_cpu,
        "copy+hash cpu": copy_and_hash(first.bytes),
        "second": again,
        "second cpu": more_cpu,
        "stored": first.stored_bytes / 1e6,
        "2nd stored": second.stored_bytes / 1e6,
        "restore": statistics.median(restore(second.ref, images) for _ in range(ROUNDS)),
    }


def restore(ref: str, images: Images) -> float:
    """From a world in which nothing runs to an answer that touches the array."""
    world: World = native_build.make_world("user")

    def once() -> None:
        assert images.load(ref, world).wake().value("data[0] >= 0")

    took = seconds(once)
    world.close()
    return took


def main() -> None:
    native_build.built_loader()
    fresh = fresh_kernel()
    first = True
    encrypted = "--encrypted" in sys.argv
    for mib in [int(a) for a in sys.argv[1:] if a != "--encrypted"] or [20, 1024]:
        with tempfile.TemporaryDirectory() as folder:
            if encrypted:
                encryption.turn_on(pathlib.Path(folder), Secret(os.urandom(32)), "hkdf-sha256")
            row = measure(mib, Images(pathlib.Path(folder)))
        row["cpu/c+h"] = row["cpu"] / row["copy+hash cpu"]
        row["next/c+h"] = row["next cpu"] / row["copy+hash cpu"]
        row["fresh kernel"] = fresh
        row["restore/fresh"] = row["restore"] / fresh
        if first:
            print(f"{'MiB':>6}", *(f"{name:>13}" for name in row))
            first = False
        print(f"{mib:>6}", *(f"{value:>13.3f}" for value in row.values()))
    native_build.clean_up()


main()
