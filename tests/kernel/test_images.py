"""The exact process on the disk: after everything was killed it goes on where it stood."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from kernel_runtime.store.database import open_store
from kernel_runtime.store.database_file import FILE_NAME
from kernel_runtime.store.file_digests import KeptDigests, key_of
from kernel_runtime.store.keys import Keys
from tests.exhaustive import times
from tests.kernel.durable_world import changed_package, durable, image, kill
from tests.states.suite import WAYS
from tests.waiting import until

SESSION = """
import asyncio, threading, time
def count():
    n = 0
    while True: yield n; n += 1
it = count(); next(it), next(it)
ticks = [0]
def tick():
    while True: time.sleep(0.01); ticks[0] += 1
thread = threading.Thread(target=tick, daemon=True); thread.start()
log = open('log', 'w'); log.write('half a line'); log.flush(); log.write(', buffered')
async def sleeper():
    await asyncio.sleep(0.2); done.append('slept')
done = []; task = asyncio.ensure_future(sleeper())
import ctypes, mmap
libc = ctypes.CDLL(None)
def protect(first, pages, prot):
    assert libc.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(pages * 4096), prot) == 0
# neighbours that lie together on the disk, of which only the first may be written to
block = mmap.mmap(-1, 8 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
block[:] = bytes(range(1, 9)) * 4096
first = ctypes.addressof(ctypes.c_char.from_buffer(block))
protect(first + 4096, 1, mmap.PROT_READ); protect(first + 3 * 4096, 2, mmap.PROT_READ)
def whole():
    lines = [l.split() for l in open('/proc/self/maps')]
    places = [(*[int(x, 16) - first for x in l[0].split('-')], l[1]) for l in lines]
    inside = [(a // 4096, b // 4096, p) for a, b, p in places if 0 < b and a < 8 * 4096]
    return block[:] == bytes(range(1, 9)) * 4096, inside[1:4]
"""
CHECK = """
import os
before, end = ticks[0], time.monotonic() + 50
while ticks[0] == before and time.monotonic() < end: time.sleep(0.01)
log.write(' and on'); log.flush()
print(next(it), thread.is_alive(), ticks[0] > before, open('log').read())
"""


@pytest.mark.parametrize("engine", ["image", pytest.param("criu", marks=pytest.mark.root)])
def test_a_killed_session_goes_on_in_the_middle_of_everything(
    engine: str,
    start_notebook: Callable[..., Any],
    document: dict[str, Any],
    ability: Callable[[str, bool], None],
) -> None:
    """Several times in a row, and what came back is written again each time."""
    way = WAYS[engine]
    ability(way.missing(), not way.missing())
    arguments = ("--Supervisor.durability=manual", *way.arguments)
    notebook = start_notebook(*arguments, **document)
    notebook.run(SESSION)
    notebook.run("%checkpoint")
    assert image(notebook, 2, engine)["state"] == "ready", image(notebook, 2, engine)
    kill(notebook)
    for turn in range(times(10, 5)):
        notebook = start_notebook(*arguments, **document)
        text = notebook.run("%timetravel resume").out
        assert text.startswith("restored #") and "a fresh one" not in text, text
        assert "new id" not in text
        ons = " and on" * (turn + 1)
        expected = f"{turn + 2} True True half a line, buffered{ons}"
        assert notebook.run(CHECK).out == expected
        assert notebook.run("await task; print(done)").out == "['slept']"
        pages = "[(1, 2, 'r--p'), (2, 3, 'rw-p'), (3, 5, 'r--p')]"
        assert notebook.run("print(*whole())").out == f"True {pages}"
        number = int(notebook.run("%checkpoint").out.split("#")[1].split()[0])
        assert image(notebook, number, engine)["state"] == "ready"
        # the frozen process that the image became serves for more than one restore
        notebook.run("%restore -1")
        assert notebook.run("thread.is_alive()").result == "True"
        kill(notebook)


def _until_gone(path: Path) -> None:
    until(lambda: not path.exists())


def test_a_capture_is_said_to_be_ready_once_its_row_is_on_the_disk(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path
) -> None:
    """Else a kernel that is killed right then has lost what it had said it had."""
    patience = "BUSY_TIMEOUT_S: Final = {}.0"  # it waits for the row, however slow all is
    longer = ("store/database_file.py", patience.format(5), patience.format(300))
    env = {**document["env"], "PYTHONPATH": str(changed_package(tmp_path / "patient", longer))}
    notebook = start_notebook("--Supervisor.durability=manual", **{**document, "env": env})
    images = tmp_path / "store" / "images"
    with contextlib.closing(open_store(tmp_path / "store")) as store:
        for _ in range(20):
            known = store.references("process", "image")
            sent = notebook.send("%checkpoint")
            writing: list[Path] = []

            def begun(before: set[str] = known, found: list[Path] = writing) -> bool:
                found += images.glob("tmp-*")
                return bool(found) or store.references("process", "image") != before

            until(begun)
            file = tmp_path / "store" / FILE_NAME
            with contextlib.closing(sqlite3.connect(file, timeout=60)) as database:
                database.execute("BEGIN IMMEDIATE")  # nobody else can write
                known = store.references("process", "image")
                is_held = bool(writing) and writing[0].exists()  # else its row may be there
                if is_held:
                    _until_gone(writing[0])
                number = int(notebook.wait(sent).out.split("#")[1].split()[0])
                if is_held:
                    for _ in range(5):
                        record = notebook.command("get", checkpoint=number)["checkpoint"]
                        states = [c["state"] for c in record["captures"] if c["engine"] == "image"]
                        assert states == ["pending"], states
                    assert store.references("process", "image") == known
                database.rollback()
            assert image(notebook, number)["state"] == "ready"
            if is_held:
                assert len(store.references("process", "image")) == len(known) + 1
                return
    pytest.fail("each image was written within a moment")


def test_libraries_are_read_once_for_all_kernels(
    start_notebook: Callable[..., Any],
    document: dict[str, Any],
    tmp_path: Path,
    ability: Callable[[str, bool], None],
) -> None:
    """Also where the session sees them through an overlay."""
    with open("/proc/self/maps") as lines:
        library = Path(next(line.split()[-1] for line in lines if "/libc.so" in line))
    ability("a libc that is ten minutes old", time.time() - library.stat().st_ctime > 700)
    notebook = start_notebook("--Supervisor.durability=manual", **document)
    notebook.run("%checkpoint")
    assert image(notebook, 1)["state"] == "ready"
    kept = KeptDigests(tmp_path / "store" / "images", Keys(tmp_path / "keys"))
    assert (
        kept.get(key_of(library.stat()))
        == blake2b(library.read_bytes(), digest_size=32).hexdigest()
    )


def test_a_damaged_image_gives_way_to_the_variables(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path
) -> None:
    notebook = start_notebook("--Supervisor.durability=manual", **document)
    notebook.run("x = [1]; y = x; it = iter(i for i in 'ab')")
    notebook.run("%checkpoint")
    assert image(notebook, 2)["state"] == "ready"
    kill(notebook)
    for pages in (tmp_path / "store" / "images").glob("*/pages.ttpages"):
        data = bytearray(pages.read_bytes())
        data[len(data) // 2] ^= 1
        pages.write_bytes(data)
    notebook = start_notebook("--Supervisor.durability=manual", **document)
    text = notebook.run("%restore 2").out
    assert "the process itself could not be brought back" in text and "a fresh one" in text
    assert "not brought back: it" in text
    assert notebook.run("y.append(2); x").result == "[1, 2]"


WAITERS = """
import asyncio, threading, time
async def sleeper():
    await asyncio.sleep(2); done.append('task')
def waiter():
    time.sleep(2); done.append('thread')
"""
WAIT = """
done = []; before = time.monotonic()
task = asyncio.ensure_future(sleeper())
thread = threading.Thread(target=waiter); thread.start()
"""


def test_after_a_reboot_sleeps_end_as_they_would_have(
    start_notebook: Callable[..., Any], document: dict[str, Any], later: tuple[str, ...]
) -> None:
    notebook = start_notebook("--Supervisor.durability=manual", prefix=later, **document)
    notebook.run(WAITERS)
    for _ in range(2):  # the second image is of a process whose clock was put ahead
        notebook.run(WAIT)
        number = int(notebook.run("%checkpoint").out.split("#")[1].split()[0])
        assert image(notebook, number)["state"] == "ready"
        kill(notebook)
        notebook = start_notebook("--Supervisor.durability=manual", **document)
        report = notebook.run(f"%restore {number}").out
        assert "behind" not in report and "a fresh one" not in report, report
        notebook.run("await asyncio.wait_for(task, 50); thread.join(50)")
        cell = notebook.run("print(sorted(done), time.monotonic() > before)")
        assert cell.out == "['task', 'thread'] True"


def test_where_criu_cannot_be_used_ours_is_written(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    if os.geteuid() == 0:
        pytest.skip("root can use it")
    arguments = ("--Supervisor.durability=manual", "--Supervisor.images_by=criu")
    notebook = start_notebook(*arguments, **document)
    notebook.run("it = iter('abc'); next(it)")
    notebook.run("%checkpoint")
    assert image(notebook, 2)["state"] == "ready"
    cell = notebook.run("next(it)")
    said = cell.text("stdout") + cell.text("stderr")
    assert "CRIU cannot be used: it needs root" in said, said
    notebook.run("%checkpoint")
    assert image(notebook, notebook.head()["number"])["state"] == "ready"
    cell = notebook.run("pass")
    assert "CRIU" not in cell.text("stdout") + cell.text("stderr")


def test_a_store_that_takes_no_image(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path
) -> None:
    """It is noted with its reason, everything else goes on, and the next one is written again."""
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    notebook = start_notebook("--Supervisor.durability=manual", **document)
    images = tmp_path / "store" / "images"
    images.mkdir(mode=0o500)
    notebook.run("it = iter('abc'); x = next(it)")
    notebook.run("%checkpoint")
    failed = image(notebook, 2)
    assert failed["state"] == "failed" and "could not be written" in failed["error"], failed
    assert durable(notebook, 2)["state"] == "ready"
    notebook.run("next(it)")
    notebook.run("%restore 2")
    assert notebook.run("next(it)").result == "'b'"
    images.chmod(0o700)
    notebook.run("%checkpoint")
    number = notebook.head()["number"]
    assert image(notebook, number)["state"] == "ready"
    kill(notebook)
    notebook = start_notebook("--Supervisor.durability=manual", **document)
    assert notebook.run(f"%restore {number}").out.startswith("restored #")
    assert notebook.run("next(it)").result == "'c'"


def test_large_images_of_automatic_checkpoints_make_room_before_checkpoints_go(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    """A quarter of the budget has no room for three of these; what was asked for stays anyhow."""
    notebook = start_notebook(
        "--Supervisor.durability_interval=0", "--Supervisor.budget_bytes=480_000_000", **document
    )
    notebook.run("import numpy as np; data = np.random.default_rng(0).random(45 * 125_000); n = 0")
    first = float(notebook.run("print(data[7])").out)
    for n in range(1, 8):
        notebook.run(f"data += 1; n = {n}")  # each image has 45 MB of its own
        assert image(notebook, notebook.head()["number"])["state"] == "ready"
        if n == 2:
            made = notebook.run("%checkpoint --label mine").out
            labelled = int(made.split()[1].strip("#"))
            assert image(notebook, labelled)["state"] == "ready"

    def ready() -> list[int]:
        return [
            record["number"]
            for record in notebook.command("list")["checkpoints"]
            if any(c["engine"] == "image" and c["state"] == "ready" for c in record["captures"])
        ]

    last = notebook.head()["number"]
    until(lambda: ready() == [labelled, last - 1, last])
    assert len(notebook.command("list")["checkpoints"]) == last + 1  # no checkpoint went
    kill(notebook)
    second = start_notebook(**document)
    for number, n in ((last, 7), (last - 4, 3)):
        assert "restored" in second.run(f"%restore {number}").out
        shown = second.run("print(n, data[7], len(data))").out.split()
        assert (shown[0], shown[2]) == (str(n), "5625000")
        assert float(shown[1]) == pytest.approx(first + n)
