"""Checkpoints that note what was written since a process was frozen (engines/difference.py)."""

from __future__ import annotations

import platform

import pytest

from kernel_runtime.supervisor.limits import memory_limit
from tests.session_processes import frozen_of
from tests.waiting import until

CELLS = 12


@pytest.fixture
def quick(start_notebook, ability):
    """Starts a notebook in which nothing asks a frozen process for anything by itself."""
    release = tuple(int(part) for part in platform.release().split(".")[:2])
    ability("Linux 6.11", release >= (6, 11))

    def start(setting="--Supervisor.differences=16"):
        notebook = start_notebook(
            "--Supervisor.twins=False", "--Supervisor.durability=manual", setting
        )
        notebook.run("x, kept, big = 0, [], bytearray(20 << 20)")
        for _ in range(4):  # until nothing is mapped any more by such a cell
            notebook.run("x += 0")
        return notebook

    return start


def count(notebook):
    """Run some cells; the number of the checkpoint after each, by the value of x."""
    numbers = {}
    for _ in range(CELLS):
        cell = notebook.run("x += 1; kept.append('*' * x); big[x << 16] = x; print(x)")
        numbers[int(cell.out)] = notebook.head()["number"]
    return numbers


def check(notebook, x):
    state = f"{x} {x} {sum(range(x + 1))}"
    assert notebook.run("print(x, len(kept), sum(big))").out == state


def without_a_process(notebook):
    """How many checkpoints have none. Where cells map something new, and only there, they have."""
    return len(notebook.command("list")["checkpoints"]) - len(frozen_of(notebook.pid))


def test_there_is_no_process_until_it_is_needed(quick):
    notebook = quick()
    numbers = count(notebook)
    assert without_a_process(notebook) >= 3
    for x in (3, CELLS, 1, 7, 7, 2):
        notebook.run(f"%restore {numbers[x]}")
        check(notebook, x)
        notebook.run("x = -1; del kept[:]; big[:] = bytes(len(big))")


def test_none_where_the_user_wants_none(quick):
    notebook = quick("--Supervisor.differences=0")
    numbers = count(notebook)
    until(lambda: without_a_process(notebook) == 0)
    notebook.run("%timetravel config differences=16")
    more = count(notebook)
    assert without_a_process(notebook) >= 3
    notebook.run(f"%restore {more[2 * CELLS - 1]}")
    check(notebook, 2 * CELLS - 1)
    notebook.run(f"%restore {numbers[5]}")
    check(notebook, 5)


def test_the_budget_holds_where_a_base_goes(quick):
    """Who takes its place holds then what the base has held."""
    notebook = quick()
    count(notebook)
    notebook.run("big[:] = bytes(len(big))")  # what was there before is the base's alone
    notebook.command("config", set={"memory_fraction": (40 << 20) / memory_limit()})
    notebook.run("%checkpoint")

    def fits():
        memory = notebook.command("status")["memory"]
        return memory["frozen_bytes"] <= memory["budget_bytes"]

    until(fits)


def test_many_that_go_at_once_do_not_become_processes_first(quick):
    """What others are based on goes after them, so that none has to take its place."""
    notebook = quick()

    def newest_process():
        return int(notebook.run("print(open('/proc/sys/kernel/ns_last_pid').read())").out)

    for _ in range(24):
        notebook.run("x += 1")
    assert without_a_process(notebook) >= 12
    before = newest_process()
    notebook.command("config", set={"memory_fraction": (1 << 20) / memory_limit()})
    notebook.run("%checkpoint")

    def gone():
        records = notebook.command("list")["checkpoints"]
        return sum(c["state"] == "evicted" for r in records for c in r["captures"])

    until(lambda: gone() >= 24)
    assert newest_process() - before < 8


def test_checkpoints_that_others_are_based_on_are_deleted(quick):
    """The oldest of those that wait takes the place: again and again."""
    notebook = quick()
    numbers = count(notebook)
    for x in range(1, CELLS - 1):
        notebook.run(f"%checkpoint --delete {numbers[x]}")
        if x % 4 == 0:
            notebook.run(f"%restore {numbers[CELLS - 1]}")
            check(notebook, CELLS - 1)
    notebook.run(f"%restore {numbers[CELLS]}")
    check(notebook, CELLS)


def test_a_frozen_process_that_others_are_based_on_ends(quick):
    """They are lost with it, and are said to be; the next ones do without it."""
    notebook = quick()
    numbers = count(notebook)
    for process in frozen_of(notebook.pid):
        process.kill()
    states = {}

    def all_lost():
        records = notebook.command("list")["checkpoints"]
        for record in records:
            fork = next(c for c in record["captures"] if c["engine"] == "fork")
            states[record["number"]] = fork["state"]
        return all(states[number] == "evicted" for number in numbers.values())

    until(all_lost)
    more = count(notebook)
    notebook.run(f"%restore {more[2 * CELLS - 1]}")
    check(notebook, 2 * CELLS - 1)


def test_the_executor_dies(quick):
    """The session goes back to a checkpoint that had no process so far."""
    notebook = quick()
    count(notebook)
    cell = notebook.run("x = -1; import os; os.kill(os.getpid(), 9)", ok=False)
    assert cell.error.startswith("ExecutorDied")
    check(notebook, CELLS)


def test_child_processes_share_what_was_written(quick):
    """A pool that is forked between two cells: clones are made as long as it is there."""
    notebook = quick()
    notebook.run("import multiprocessing as mp; pool = mp.get_context('fork').Pool(2)")
    numbers = count(notebook)
    notebook.run("print(pool.apply(sum, [big]))")
    notebook.run("pool.terminate(); pool.join(); del pool")
    more = count(notebook)
    for x, number in [(4, numbers[4]), (CELLS + 4, more[CELLS + 4])]:
        notebook.run(f"%restore {number}")
        check(notebook, x)
