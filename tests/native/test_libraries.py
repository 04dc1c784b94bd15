"""Real libraries with thread pools of their own: they go on in the live and in woken processes."""

from __future__ import annotations

import importlib.util

import native_target as tt
import pytest
from native_build import need
from native_harness import Process, World

pytestmark = pytest.mark.libraries

POLARS = """
import polars as pl
df = pl.DataFrame({"k": [i % 7 for i in range(100_000)], "v": range(100_000)})
def job():
    t = df.group_by("k").agg(pl.col("v").sum()).sort("k")["v"].to_list()
    return [t[0], df.lazy().filter(pl.col("v") > 99_990).collect().height]
"""
DUCKDB = """
import duckdb
con = duckdb.connect()
con.execute("create table t as select range a, range % 100 b from range(500000)")
def job():
    groups = "(select b, sum(a) s from t group by b)"
    return list(con.execute("select count(*), sum(s)::bigint from " + groups).fetchone())
"""
ARROW = """
import pyarrow as pa, pyarrow.compute
table = pa.table({"a": [i % 50 for i in range(300_000)], "b": list(range(300_000))})
def job():
    r = table.group_by("a").aggregate([("b", "sum")])
    return [r.num_rows, pa.compute.sum(r["b_sum"]).as_py()]
"""
NUMPY = """
import numpy as np
a = np.ones((700, 700))
def job():
    return [float((a @ a).sum()), float(np.linalg.norm(a))]
"""
SKLEARN = """
import numpy as np
from sklearn.cluster import KMeans
from sklearn.ensemble import HistGradientBoostingClassifier
x = np.random.default_rng(0).random((3000, 20)); y = x[:, 0] > .5
def job():
    trees = HistGradientBoostingClassifier(max_iter=5, random_state=0).fit(x, y)
    means = KMeans(3, n_init=1, random_state=0).fit(x)
    return [bool(trees.score(x, y) > .99), int(means.labels_.shape[0])]
"""
TQDM = """
import io, threading, tqdm
bar = tqdm.tqdm(total=10, file=io.StringIO())
def job():
    alive = any(t.name == "tqdm_monitor" and t.is_alive() for t in threading.enumerate())
    return [alive, tqdm.tqdm.monitor.report() is not None]
"""
POOL = """
import threading, time, queue
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(4); list(pool.map(abs, range(10)))
asked, answered = queue.Queue(), queue.Queue()
def work():
    while True:
        answered.put(asked.get() ** 2)
squarer = threading.Thread(target=work, daemon=True, name="squarer"); squarer.start()
event, seen = threading.Event(), threading.Event()
def wait():
    event.wait(); seen.set()
threading.Thread(target=wait, daemon=True).start()
def job():
    asked.put(7); event.set()
    nine = pool.submit(abs, -9).result(60)
    return [nine, answered.get(timeout=60), seen.wait(60), squarer.is_alive()]
"""
ASYNCIO = """
import asyncio, threading
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
async def later():
    await asyncio.sleep(.01); return await loop.run_in_executor(None, abs, -4)
def job():
    return asyncio.run_coroutine_threadsafe(later(), loop).result(60)
"""


def has(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            need(f"python module {module}")


def go_through(world: World, setup: str, expected: object, after_new_ids: str = "") -> None:
    """Live, woken, frozen and woken again, moved, a consumed twin: job() gives the same."""
    live = world.start(setup)
    assert live.value("job()") == expected
    frozen = live.freeze()
    assert frozen.made["result"] == 0 and frozen.report == []

    def check(process: Process) -> None:
        assert process.woken["report"] == []
        if not process.woken["facts"]["woken_ids_kept"]:
            process.run(after_new_ids)
        assert process.value("job()") == expected
        process.kill()

    assert live.value("job()") == expected
    live.kill()
    check(frozen.wake())
    check(frozen.twin().wake(tt.WAKE_CONSUME))
    woken = frozen.wake()
    again = woken.freeze(flags=tt.MOVE)
    again.ask(tt.PING)
    woken.kill()
    check(again.wake())
    check(again.wake(tt.WAKE_CONSUME))


def test_polars(any_world: World) -> None:
    has("polars")
    go_through(any_world, POLARS, [714264285, 9])


def test_duckdb(any_world: World) -> None:
    has("duckdb")
    go_through(any_world, DUCKDB, [100, 124999750000])


def test_arrow(any_world: World) -> None:
    has("pyarrow")
    go_through(any_world, ARROW, [50, 44999850000])


def test_numpy(any_world: World) -> None:
    has("numpy")
    go_through(any_world, NUMPY, [343000000.0, 700.0])


def test_openmp_of_scikit_learn(any_world: World) -> None:
    has("sklearn")
    go_through(any_world, SKLEARN, [True, 3000])


def test_monitor_of_tqdm(any_world: World) -> None:
    has("tqdm")
    go_through(any_world, TQDM, [True, True])


def test_python_threads_and_pools(any_world: World) -> None:
    go_through(any_world, POOL, [9, 49, True, True])


def test_event_loop_in_a_thread(any_world: World) -> None:
    # until Python 3.13 asyncio remembers the pid with the running loop
    put_right = "loop.call_soon_threadsafe(asyncio._set_running_loop, loop)"
    go_through(any_world, ASYNCIO, 4, put_right)


def test_process_13_duckdb_holds_its_lock(any_world: World) -> None:
    has("duckdb")
    live = any_world.start(
        "import duckdb, subprocess, sys\n"
        "con = duckdb.connect('x.duckdb')\n"
        "con.execute('create table t as select range as i from range(10)')\n"
        "con.execute('checkpoint')\n"
        "probe = '''import duckdb\n"
        "try: duckdb.connect('x.duckdb').close(); print('free')\n"
        "except Exception as e: print('locked')'''\n"
        "def other(): return subprocess.run([sys.executable, '-c', probe], capture_output=True,"
        " text=True, timeout=100).stdout.strip()\n"
        "count = 'select count(*) from t'\n"
    )
    assert live.value("other()") == "locked"
    frozen = live.freeze()
    kept = (any_world.folder / "x.duckdb").read_bytes()
    live.run("con.execute('delete from t'); con.close()")
    assert live.value("other()") == "free"
    live.kill()
    (any_world.folder / "x.duckdb").write_bytes(kept)  # the filesystem's part of a restore
    woken = frozen.wake()
    assert woken.value("[con.execute(count).fetchone()[0], other()]") == [10, "locked"]
    woken.run(
        "con.execute('insert into t values (99)'); con.close(); c2 = duckdb.connect('x.duckdb')"
    )
    assert woken.value("c2.execute(count).fetchone()[0]") == 11
    woken.run("c2.close()")
    assert woken.value("other()") == "free"


@pytest.mark.storm
def test_busy_session_is_frozen_and_woken_many_times(plain_world: World) -> None:
    """Threads allocate, query, multiply, hash and start other threads without pause."""
    has("polars", "numpy")
    live = plain_world.start(BUSY)
    for _ in range(12):
        frozen = live.freeze(stop_timeout_ms=60000)
        assert frozen.made["result"] == 0, frozen.made
        woken = frozen.wake()
        assert woken.value("all_move()") == [] and woken.value("err") == []
        woken.kill()
        frozen.quit()
    assert live.value("all_move()") == [] and live.value("err") == []


BUSY = """
import hashlib, os, random, threading, time
import numpy as np, polars as pl
df = pl.DataFrame({"a": np.arange(300_000) % 97, "b": np.random.rand(300_000)})
cnt, err = [0] * 5, []
def allocate():
    [bytes(random.randrange(1, 5000)) for _ in range(200)]
def query():
    r = df.lazy().group_by("a").agg(pl.col("b").sum()).collect().height
    if r != 97: err.append(r)
m = np.random.rand(200, 200)
def multiply():
    (m @ m).sum()
def digest():
    hashlib.sha256(os.urandom(200000)).hexdigest()
def threads():
    e = threading.Event(); t = threading.Thread(target=e.set); t.start(); e.wait(); t.join()
def run(i, job):
    while True:
        job(); cnt[i] += 1
for i, job in enumerate((allocate, query, multiply, digest, threads)):
    threading.Thread(target=run, args=(i, job), daemon=True).start()
def all_move():
    before, until = list(cnt), time.monotonic() + 60
    while time.monotonic() < until:
        still = [i for i in range(5) if cnt[i] == before[i]]
        if not still: return []
        time.sleep(.01)
    return still
"""
