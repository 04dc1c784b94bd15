"""Pages that the next cell will write are made ready after a freeze (native/prefault.c)."""

from __future__ import annotations

import array
import contextlib
import os
import platform
import time
from pathlib import Path

import psutil

from kernel_runtime.executor import timetravel
from kernel_runtime.supervisor import limits
from kernel_runtime.supervisor.limits import memory_limit
from tests.kernel.durable_world import durable
from tests.session_processes import executor_of, frozen_of
from tests.waiting import until

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
LEISURE_S = 0.05
"""A request that comes sooner after a freeze leaves no time for it (executor/timetravel.py)."""


def kib(process, address, what):
    """A process's part of the mapping at an address, in KiB (proc(5), smaps)."""
    inside = False
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a twin that is given up
        for line in Path(f"/proc/{process.pid}/smaps").read_text().splitlines():
            first, _, rest = line.partition(" ")
            if "-" in first:
                start, _, end = first.partition("-")
                inside = int(start, 16) <= address < int(end, 16)
            elif inside and first == what:
                return int(rest.split()[0])
    return 0  # it is from before there was such a mapping


def own_kib(notebook, address):
    """What the live process shares with no frozen one."""
    return kib(executor_of(notebook.pid), address, "Private_Dirty:")


def pages_of_its_own(notebook, address, size):
    """How many pages of a block nobody else has mapped (pagemap.rst, bit 56)."""
    with Path(f"/proc/{executor_of(notebook.pid).pid}/pagemap").open("rb") as pagemap:
        pagemap.seek(address // 4096 * 8)
        entries = array.array("Q", pagemap.read(size // 4096 * 8))
    return sum(entry >> 56 & 1 for entry in entries)


def wait_until_own(notebook, number, address):
    """From the freeze of a checkpoint on. The process is asked nothing: the touching would stop."""
    until(lambda: notebook.command("status")["head"]["number"] >= number)
    until(lambda: own_kib(notebook, address) >= 4000)
    time.sleep(LEISURE_S)


def test_pages_written_since_the_last_freeze_are_noted_and_touched(start_notebook):
    notebook = start_notebook("--Supervisor.differences=0")  # else nothing is touched
    cell = notebook.run(
        "library = get_ipython().kernel.timetravel._library\nimport resource\n"
        "block = bytearray(4 << 20)\n"
        "def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "def write():\n    for i in range(0, len(block), 4096): block[i] = block[i] ^ 1\n"
        "import ctypes; print(ctypes.addressof(ctypes.c_char.from_buffer(block)))"
    )
    address = int(cell.out)
    number = notebook.head()["number"]
    time.sleep(LEISURE_S)
    # what is written here, between two freezes, is noted before the second one …
    cell = notebook.run("write(); print(library._library.tt_pages_note(8 << 20, 8192))")
    assert int(cell.out) > 1000
    # … and was made this process's own after it: writing it again meets hardly a fault
    wait_until_own(notebook, number + 1, address)
    notebook.run("write()")
    wait_until_own(notebook, number + 2, address)
    cell = notebook.run("before = faults(); write(); print(faults() - before)")
    assert int(cell.out) < 500


def test_pages_that_no_cell_writes_any_more_are_shared_again(start_notebook):
    """Else each checkpoint would hold what one cell wrote, for as long as the session lives."""
    notebook = start_notebook("--Supervisor.differences=0")  # else nothing is touched
    cell = notebook.run(
        "block = bytearray(4 << 20)\nfor i in range(0, len(block), 4096): block[i] = 1\n"
        "import ctypes; print(ctypes.addressof(ctypes.c_char.from_buffer(block)))"
    )
    address = int(cell.out)
    for _ in range(3 * timetravel._TOUCHED_IN_A_ROW):
        number = notebook.command("status")["head"]["number"]
        notebook.run("x = 1")
        until(lambda: notebook.command("status")["head"]["number"] > number)  # noqa: B023
        time.sleep(4 * LEISURE_S)  # they are touched a moment later
        if pages_of_its_own(notebook, address, 4 << 20) < 100:
            return
    raise AssertionError("each freeze still makes them the live process's own")


def test_what_one_cell_wrote_is_not_noted_for_ever(start_notebook):
    """A difference has all that was written since its base: then a new base is the cheaper one."""
    notebook = start_notebook("--Supervisor.twins=False", "--Supervisor.durability=manual")
    notebook.run("block, x = [bytearray(1000) for _ in range(5000)], 0")
    write = "for one in block: one[500] ^= 1"
    for cell in ("x += 1", write, "x += 1", write, "x += 1"):  # until nothing new is mapped by it
        notebook.run(cell)
    held = []
    notebook.run(write)
    for _ in range(24):
        notebook.run("x += 1")
        held.append(notebook.command("status")["memory"]["frozen_bytes"])
    # with what trivial cells write themselves, some 6 MB each
    assert held[-1] - held[0] < 10 * len(held) << 20, " ".join(str(size >> 20) for size in held)


def test_an_array_that_is_left_alone_is_copied_once(notebook, ability):
    """The frozen process copies what the last cell wrote, for the next one's sake. From then on
    nobody shares it with the live one, as if it were written again."""
    ability("two processors", (os.cpu_count() or 1) > 1)

    def copies():
        all_of_them = [executor_of(notebook.pid), *frozen_of(notebook.pid)]
        return round(sum(kib(one, address, "Pss:") for one in all_of_them) / (64 << 10))

    cell = notebook.run("import numpy as np; a = np.ones(64 << 20, np.uint8); print(a.ctypes.data)")
    address = int(cell.out) + (1 << 20)
    until(lambda: copies() == 2)  # the live process's, and the first checkpoint's
    for _ in range(4):
        notebook.run("x = 1")
        time.sleep(0.7)  # until it is at rest, and upkeep has begun
    assert copies() == 2
    notebook.run("a += 1")
    until(lambda: copies() == 3)


def test_touching_stops_for_a_request(notebook):
    cell = notebook.run(
        "import os\nlibrary = get_ipython().kernel.timetravel._library\n"
        "r, w = os.pipe(); os.write(w, b'x')\nlibrary.note_pages()\n"
        "print(library.touch_pages(r) <= 4096, library.touch_pages(r))"
    )
    assert cell.out == "True 0"


def test_a_restored_twin_has_its_pages(start_notebook):
    """A twin becomes the live process, with what its first cell writes made ready; a copy that is
    made at the restore would meet a fault for each page."""
    # else a clone now and then is not touched, and two of them in a row leave nothing to go by
    notebook = start_notebook("--Supervisor.differences=0")
    notebook.run(
        "import resource\nblock = bytearray(4 << 20)\n"
        "def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "def write():\n    for i in range(0, len(block), 4096): block[i] = block[i] ^ 1\n"
    )
    notebook.head()  # once it is frozen
    time.sleep(LEISURE_S)
    notebook.run("write()")
    notebook.head()  # a freeze that somebody waits behind does not take the time to note pages
    notebook.command("checkpoint")
    number = notebook.head()["number"]
    time.sleep(LEISURE_S)
    # of the head, of its parent, and then of where the last restore went
    for cells, twins in ((["x = 1"], 2), (["x = 2", "x = 3"], 3)):
        for cell in cells:
            notebook.run(cell)
        wait_for_twins(notebook, twins)
        notebook.command("restore", checkpoint=number)
        cell = notebook.run("before = faults(); write(); print(faults() - before)")
        assert int(cell.out) < 500


def test_a_restored_twin_has_what_is_written_here_and_there_in_a_heap(start_notebook):
    notebook = start_notebook("--Supervisor.differences=0")
    notebook.run(
        "import resource\nheap = [bytearray(1000) for _ in range(24000)]\n"
        "def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "def write():\n    for one in heap[::30]: one[500] ^= 1\n"
    )
    number = notebook.head()["number"]
    notebook.run("write()")
    wait_for_twins(notebook, 2)
    notebook.command("restore", checkpoint=number)
    cell = notebook.run("before = faults(); write(); print(faults() - before)")
    assert int(cell.out) < 400, "of 800"


def code_kib(process):
    """How much of the interpreter's code a process has mapped."""
    found, of_code = 0, False
    for line in Path(f"/proc/{process.pid}/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first:
            of_code = rest[0] == "r-xp" and "python" in rest[-1]
        elif of_code and first == "Rss:":
            found += int(rest[0])
    return found


def test_a_twin_has_code_mapped(notebook):
    """No fork copies that: each page of a file would be a fault of the first cell."""
    notebook.run("x = 1")
    wait_for_twins(notebook, 2)
    twins = [one for one in frozen_of(notebook.pid) if code_kib(one) > 1000]
    assert len(twins) == 2
    assert code_kib(executor_of(notebook.pid)) > 1000


def wait_for_twins(notebook, count):
    until(lambda: notebook.command("status")["counts"]["twins"] == count)
    # a twin is there before its pages are, at low priority
    until(lambda: not any(map(is_at_work, psutil.Process(notebook.pid).children(recursive=True))))


def is_at_work(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_SLEEPING
    return False


def huge_kib(notebook):
    text = Path(f"/proc/{executor_of(notebook.pid).pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if "AnonHugePages" in line)


def test_huge_pages_that_cells_broke_up_come_back(notebook, ability):
    release = tuple(int(part) for part in platform.release().split(".")[:2])
    ability("Linux 6.11", release >= (6, 11))
    ability("two processors", (os.cpu_count() or 1) > 1)
    ability("huge pages", "[never]" not in HUGE_PAGES.read_text())
    notebook.run("import numpy as np; a = np.zeros(64 << 20, np.uint8)")
    notebook.run("a += 1")
    for _ in range(2):  # one after the other: what the checkpoint between shares is broken up
        notebook.run("a += 1")
    until(lambda: huge_kib(notebook) >= 60 << 10)
    notebook.run("a += 1")
    assert huge_kib(notebook) >= 60 << 10, "the cell has broken them up again"
    assert notebook.run("print(a.min(), a.max())").out == "4 4"


def test_the_oldest_checkpoints_make_room_for_the_next_rewrite(start_notebook, document, ability):
    """What the next cell is likely to write is copied ahead, also where the memory is full."""
    ability("two processors", (os.cpu_count() or 1) > 1)
    fraction = (200 << 20) / memory_limit()
    notebook = start_notebook(
        f"--Supervisor.memory_fraction={fraction}", "--Supervisor.durability_interval=0", **document
    )
    cell = notebook.run(
        "import numpy as np; a = np.zeros(48 << 20, np.uint8); print(a.ctypes.data)"
    )
    address = int(cell.out) + (1 << 20)  # numpy asks for huge pages from the second page on
    for number in range(1, 9):  # the budget has room for three or four
        assert durable(notebook, number)["state"] == "ready"
        time.sleep(LEISURE_S)
        notebook.run("a += 1")
        until(lambda: own_kib(notebook, address) >= 46 << 10, f"after #{number}")
    states = [capture["state"] for capture in process_captures(notebook)]
    assert "evicted" in states[:-1] and states[-1] == "ready", states
    assert notebook.run("%restore 3\nprint('no')").status == "ok"
    assert notebook.run("print(a.min(), a.max())").out == "2 2"


def rewriting(start_notebook, room, **options):
    """A session with memory for so many arrays, of which it has one; and where that is."""
    fraction = room * (48 << 20) / memory_limit()
    notebook = start_notebook(f"--Supervisor.memory_fraction={fraction}", **options)
    cell = notebook.run(
        "import numpy as np; a = np.zeros(48 << 20, np.uint8); print(a.ctypes.data)"
    )
    return notebook, int(cell.out) + (1 << 20)


def test_without_a_disk_the_oldest_make_room_for_what_each_cell_rewrites(start_notebook, ability):
    """They would go a moment later: when the next cell has written it."""
    ability("two processors", (os.cpu_count() or 1) > 1)
    notebook, address = rewriting(start_notebook, 5.2)
    notebook.run("%checkpoint asked for")
    kept = notebook.head()["number"]

    def head():
        return notebook.command("status")["head"]["number"]

    for number in range(kept + 1, kept + 9):
        notebook.run("a += 1")
        until(lambda: head() >= number)  # noqa: B023
        until(lambda: own_kib(notebook, address) >= 46 << 10, f"after #{number}")

    def is_within():
        memory = notebook.command("status")["memory"]
        return memory["frozen_bytes"] <= memory["budget_bytes"]

    until(is_within)
    captures = process_captures(notebook)
    states = [capture["state"] for capture in captures]
    assert states[kept] == "ready", "somebody has asked for it"
    assert states[-2:] == ["ready", "ready"], "the head and its parent"
    gone = [capture for capture in captures if capture["state"] == "evicted"]
    assert gone and all("memory budget of" in capture["error"] for capture in gone)
    notebook.run(f"%restore {kept}")
    assert notebook.run("print(a.min(), a.max())").out == "0 0"


def test_new_arrays_cost_no_checkpoint_ahead(start_notebook, ability):
    """That the next cell writes to them is a guess, and what is not on the disk would be lost."""
    ability("two processors", (os.cpu_count() or 1) > 1)
    notebook, _ = rewriting(start_notebook, 3.5)
    for _ in range(4):
        number = notebook.head()["number"]
        notebook.run("arrays = [*globals().get('arrays', ()), np.ones(48 << 20, np.uint8)]")
        until(lambda: notebook.head()["number"] > number)  # noqa: B023
        time.sleep(0.7)  # until it is at rest, and upkeep has been
    assert {capture["state"] for capture in process_captures(notebook)} == {"ready"}


def process_captures(notebook):
    return [
        next(c for c in record["captures"] if c["engine"] == "fork")
        for record in notebook.command("list")["checkpoints"]
    ]


def test_memory_is_given_back_where_the_machine_has_little(start_notebook):
    """However much of its own budget is left, and also while no cell runs."""
    fraction = (1 << 30) / memory_limit()
    notebook = start_notebook(
        f"--Supervisor.memory_fraction={fraction}", "--Supervisor.memory_reserve=0"
    )
    for number in range(8):
        notebook.run(f"big = bytearray([{number + 1}]) * (40 << 20)")
    newest = notebook.head()["number"]
    assert {c["state"] for c in process_captures(notebook)} == {"ready"}
    notebook.command("config", set={"memory_reserve": 1.0})

    def given_back():
        memory = notebook.command("status")["memory"]
        return memory["frozen_bytes"] <= memory["budget_bytes"] // 8

    until(given_back)
    states = process_captures(notebook)
    assert states[-1]["state"] == "ready", "the head stays"
    assert "evicted" in {c["state"] for c in states}
    assert any("little memory" in limit for limit in notebook.command("status")["limits"])
    refused = notebook.run(f"%restore {newest - 7}", ok=False)
    assert "had little memory left" in refused.error
    assert "little memory left" in refused.text("stderr")
    notebook.run(f"%restore {newest}")
    assert notebook.run("print(big[0], len(big))").out == f"8 {40 << 20}"
    notebook.command("config", set={"memory_reserve": 0})
    notebook.run("%checkpoint")
    assert not any("little memory" in limit for limit in notebook.command("status")["limits"])


def test_page_tables_count(notebook):
    """Each copy of a large array has some, though the array is there once."""
    notebook.run("from kernel_runtime.supervisor import memory")
    cell = notebook.run(
        "import mmap; m = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "before = memory.held_bytes('/proc/self'), memory.set_sizes('/proc/self')[1]\n"
        "m.madvise(mmap.MADV_NOHUGEPAGE)\n"
        "for at in range(0, len(m), 4096): m[at] = 1\n"
        "after = memory.held_bytes('/proc/self'), memory.set_sizes('/proc/self')[1]\n"
        "print((after[0] - after[1] - before[0] + before[1]) // 4096)"
    )
    assert int(cell.out) in range(30, 40)  # one for each 2 MiB
    cell = notebook.run("print(memory.held_bytes('/proc/0'), memory.set_sizes('/proc/0'))")
    assert cell.out == "0 (0, 0)"


def test_memory_that_a_control_group_leaves(tmp_path, monkeypatch):
    """Both versions; what nobody used for a while counts as free."""
    monkeypatch.setattr(limits, "CGROUPS", tmp_path)
    machine = limits.memory_available()
    assert 0 < machine <= limits.memory_limit()
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text(f"{90 << 20}\n")
    assert limits.memory_available() > 100 << 20
    (tmp_path / "memory.max").write_text(f"{100 << 20}\n")
    assert limits.memory_limit() == 100 << 20
    assert limits.memory_available() == 10 << 20
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {20 << 20}\nactive_file 7\n")
    assert limits.memory_available() == 30 << 20
    (tmp_path / "memory.max").unlink()
    (tmp_path / "memory").mkdir()
    for name, text in (
        ("limit_in_bytes", 50 << 20),
        ("usage_in_bytes", 60 << 20),
        ("stat", f"inactive_file 1\ntotal_inactive_file {4 << 20}"),
    ):
        (tmp_path / "memory" / f"memory.{name}").write_text(f"{text}\n")
    assert limits.memory_available() == 0, "more is used than it may"
    assert limits.memory_limit() == 50 << 20
