"""Locks, loggers, caches, weak references, iterators: as they were, or lost with a reason."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from namespace_harness import dump, load

from kernel_runtime.executor.namespace.reducers import iterators


def test_case_11_caches_keep_what_they_hold(tmp_path: Path) -> None:
    dumped = dump(
        tmp_path,
        """
from functools import lru_cache, cached_property, singledispatch
calls = []
@lru_cache(maxsize=50, typed=True)
def slow(n): calls.append(n); return n * n
slow(3); slow(3); slow(4)
class A:
    @cached_property
    def x(self): calls.append("x"); return [5]
    @staticmethod
    @lru_cache
    def s(q): calls.append("s"); return q
a = A(); a.x; A.s(1)
@singledispatch
def show(o): return "obj"
@show.register
def _(o: int): return "int"
""",
        """
def make():
    k, m = 3, 4
    @lru_cache(maxsize=None)
    def inner(a, *, b=2): calls.append((a, b)); return a + b + k + m
    return inner
inner = make(); inner(1); inner(1, b=5); inner(2); inner(1)
try: inner("no number")
except TypeError: pass
@lru_cache(maxsize=2)
def small(n): calls.append(n); return n
for i in (1, 2, 3, 2): small(i)
odd = lru_cache(len); odd("abc")
""",
    )
    assert dumped.lost == {}
    assert dumped.manifest["notices"] == [["odd", "cache emptied: what it holds cannot be read"]]

    came = load(
        tmp_path,
        dumped,
        "print(slow.cache_info(), slow.cache_parameters())\n"
        "slow(3); slow(4); a.x; A.s(1); print(calls[:4], len(calls), show(3), show('t'))",
        "print(inner.cache_info(), inner(1), inner(1, b=5), inner(2), inner(7), calls[-1])",
        "print(small.cache_info(), small(3), small(2), small(9), small(2), small.cache_info())",
        "print(odd('abcd'), odd.cache_info().misses)",
    )

    assert came.printed == [
        "CacheInfo(hits=1, misses=2, maxsize=50, currsize=2) {'maxsize': 50, 'typed': True}\n"
        "[3, 4, 'x', 's'] 11 int obj\n",
        "CacheInfo(hits=1, misses=4, maxsize=None, currsize=3) 10 13 11 16 (7, 2)\n",
        "CacheInfo(hits=1, misses=3, maxsize=2, currsize=2) 3 2 9 2"
        " CacheInfo(hits=4, misses=4, maxsize=2, currsize=2)\n",
        "4 1\n",
    ]


AGAIN = """
import json
from kernel_runtime.executor.namespace.loading import load
from kernel_runtime.executor.namespace.session import SessionState
from namespace_harness import DirectoryStore
_ = load(json.load(open("manifest.json")), DirectoryStore("."), SessionState(globals()))
"""


def test_case_20_loggers_and_held_locks(tmp_path: Path) -> None:
    dumped = dump(
        tmp_path,
        """
import logging, io, threading
buf = io.StringIO(); h = logging.StreamHandler(buf)
h.setFormatter(logging.Formatter("%(levelname)s|%(message)s"))
log = logging.getLogger("job"); log.setLevel("INFO"); log.addHandler(h); log.propagate = False
class Job:
    def __init__(self): self.lock = threading.RLock(); self.log = log; self.n = 0
    def run(self):
        with self.lock: self.n += 1; self.log.info("run %d", self.n)
j = Job(); j.run(); held = threading.Lock(); held.acquire(); cond = threading.Condition()
sem = threading.Semaphore(2); sem.acquire()
""",
        """
import time
mine = threading.RLock(); mine.acquire(); mine.acquire()
theirs = threading.RLock()
threading.Thread(target=theirs.acquire).start()
while "count=1" not in repr(theirs): time.sleep(.001)
to_file = logging.getLogger("to.file"); to_file.addHandler(logging.FileHandler("log.txt"))
to_file.warning("one")
adapter = logging.LoggerAdapter(to_file, {"a": 1})
logging.addLevelName(25, "NOTE"); logging.getLogger("in.no.variable").setLevel(7)
""",
    )
    assert dumped.lost == {}
    assert [name for name, _ in dumped.manifest["notices"]] == ["theirs"]
    checks = (
        "j.run(); print(repr(buf.getvalue()), j.log is logging.getLogger('job'), "
        "h in log.handlers, len(log.handlers))",
        "print(held.locked(), held.acquire(timeout=.01), sem.acquire(timeout=.01), "
        "sem.acquire(timeout=.01))",
        "with cond: cond.notify(); print(mine._is_owned(), theirs.acquire(timeout=.01))\n"
        "mine.release(); mine.release()",
        "to_file.warning('two'); print(open('log.txt').read().split(), "
        "len(to_file.handlers), adapter.logger is to_file)\n"
        "print(logging.getLevelName(25), logging.getLogger('in.no.variable').level)",
    )

    came = load(tmp_path, dumped, *checks)
    # loading again and again in one process adds no handler twice
    (tmp_path / "manifest.json").write_text(json.dumps(dumped.manifest))
    again = load(tmp_path, dumped, AGAIN, AGAIN, checks[0])

    assert came.printed == [
        "'INFO|run 1\\nINFO|run 2\\n' True True 1\n",
        "True False True False\n",
        "True True\n",
        "['one', 'two'] 1 True\nNOTE 7\n",
    ]
    assert again.printed == ["", "", *came.printed[:1]]


def test_case_08_one_bad_object_costs_only_itself(tmp_path: Path) -> None:
    dumped = dump(
        tmp_path,
        """
import sqlite3, threading, socket, subprocess, contextlib, concurrent.futures, asyncio
data = [1, 2, 3]; nested = {"ok": data, "bad": None}
def g():
    yield 1; yield 2
it = g(); next(it)
con = sqlite3.connect(":memory:"); con.execute("create table t(x)")
nested["bad"] = it
en = enumerate("abc"); next(en)
lock = threading.Lock(); sock = socket.socket()
class Holder: pass
h = Holder(); h.con = con; h.name = "keepme"
""",
        """
async def co(): return 1
c = co(); c.close()
thread = threading.Thread(target=print); child = subprocess.Popen(["true"]); child.wait()
quiet = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)  # nobody waits for its end
lives = subprocess.Popen(["sleep", "60"], **quiet); del quiet
stack = contextlib.ExitStack(); local = threading.local(); local.x = 6
loop = asyncio.new_event_loop()
import contextvars; var = contextvars.ContextVar("v", default=[1]); var.set(data)
bare = contextvars.ContextVar("w")
done = loop.create_future(); done.set_result(8); waiting = loop.create_future()
pool = concurrent.futures.ThreadPoolExecutor(3); result = pool.submit(lambda: 5); result.result()
""",
    )
    assert set(dumped.lost) == {
        *("nested", "it", "sock", "c", "thread", "lives", "stack", "loop", "waiting"),
    }
    assert "nested['bad']" in dumped.lost["nested"] and "generator" in dumped.lost["nested"]
    assert [name for name, _ in dumped.manifest["notices"]] == ["local", "pool"]

    came = load(
        tmp_path,
        dumped,
        "print(data, next(en), h.name, h.con is con, "
        "con.execute('select count(*) from t').fetchone())",
        "print(lock.acquire(False), done.result(), result.result(), pool.submit(len, "
        "'ab').result())",
        "print(local.x, var.get() is data, var.name, bare.get('-'), child.returncode,"
        " child.poll())",
    )

    assert came.printed[:2] == ["[1, 2, 3] (1, 'b') keepme True (0,)\n", "True 8 5 2\n"]
    assert came.printed[2] == "6 True v - 0 0\n"


def test_queues_weak_references_iterators_and_small_types(tmp_path: Path) -> None:
    dumped = dump(
        tmp_path,
        """
import asyncio, itertools, os, queue, random, re, struct, threading, types, weakref
q = queue.Queue(3); q.put(1); simple = queue.SimpleQueue(); simple.put(9)
pq = queue.PriorityQueue(); pq.put(2)
ev = threading.Event(); ev.set(); bounded = threading.BoundedSemaphore(2); bounded.acquire()
bar = threading.Barrier(2)
al = asyncio.Lock(); aq = asyncio.Queue(); aq.put_nowait(4); ae = asyncio.Event(); ae.set()
""",
        """
class W:
    def m(self): return 1
w = W(); w.myself = weakref.ref(w); dead = weakref.ref(W())
values = weakref.WeakValueDictionary(a=w, b=W()); keys = weakref.WeakKeyDictionary({w: 3})
members = weakref.WeakSet([w, W()]); method = weakref.WeakMethod(w.m); proxy = weakref.proxy(w)
final = weakref.finalize(w, print, "end"); final.atexit = False
""",
        """
pairs = itertools.pairwise([1, 2, 3]); next(pairs); fresh = itertools.pairwise("ab")
ended = itertools.pairwise([]); list(ended)
count = itertools.count(5, 2); next(count); cycle = itertools.cycle("ab"); next(cycle)
chain = itertools.chain([1, 2], [3]); next(chain)
mapped = map(str, [1, 2]); next(mapped); rev = reversed([1, 2]); items = iter({"a": 1}.items())
""",
        """
inner = {"a": 1}; proxied = types.MappingProxyType(inner); view = inner.keys()
st = struct.Struct("ih")
match = re.compile(r"\\d+").search("ab12"); env = os.environ; rnd = random.Random(4); rnd.random()
expected = random.Random(4)
made = types.ModuleType("handmade"); made.z = 3; simple_ns = types.SimpleNamespace(a=inner)
""",
    )
    # since Python 3.14 it does not say where it is
    hidden = sys.version_info >= (3, 14)
    assert dumped.lost.keys() == ({"cycle"} if hidden else set())

    came = load(
        tmp_path,
        dumped,
        "print(q.get(), q.maxsize, simple.get(), pq.get(), ev.is_set(), "
        "bounded.acquire(False), bounded.acquire(False), bar.parties)",
        """
async def use():
    async with al: return aq.get_nowait(), ae.is_set(), await ae.wait()
print(asyncio.run(use()))
""",
        "print(w.myself() is w, dead(), dict(values) == {'a': w}, keys[w], "
        "list(members) == [w], method()(), proxy.m(), final.alive)\n"
        "final.detach(); del w; print(len(values), len(keys), len(members))",
        "print(list(pairs), list(fresh), list(ended), next(count), "
        + ("'b', " if hidden else "next(cycle), ")
        + "list(chain), "
        "list(mapped), next(rev), list(items))",
        "inner['b'] = 2; expected.random()\n"
        "print(proxied['b'], list(view), st.size, match.group(), env is os.environ, made.z, "
        "simple_ns.a is inner, rnd.random() == expected.random())",
    )

    assert came.printed == [
        "1 3 9 2 True True False 2\n",
        "(4, True, True)\n",
        "True None True 3 True 1 1 True\n0 0 0\n",
        "[(2, 3)] [('a', 'b')] [] 7 b [2, 3] ['2'] 2 [('a', 1)]\n",
        "2 ['a', 'b'] 6 12 True 3 True True\n",
    ]


@pytest.mark.parametrize(
    ("make", "taken"),
    [
        (lambda: itertools.count(5, 3), 2),
        (lambda: itertools.count(0.5), 2),
        (lambda: itertools.repeat("x", 3), 1),
        (lambda: itertools.chain([1, 2], [3]), 1),
        (lambda: itertools.chain([1], [3]), 2),
        (lambda: itertools.starmap(pow, iter([(2, 3), (2, 4)])), 1),
        (lambda: itertools.filterfalse(None, iter([0, 1, 0])), 1),
    ],
)
def test_iterators_as_python_3_14_leaves_them(
    make: Any, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iterators, "PICKLED_BY_ITSELF", False)
    ours, theirs = make(), make()
    for iterator in (ours, theirs):
        for _ in range(taken):
            next(iterator)
    reduce = iterators.__dict__[
        {"starmap": "reduce_mapped", "filterfalse": "reduce_mapped"}.get(
            type(ours).__name__, f"reduce_{type(ours).__name__}"
        )
    ]
    how, arguments = reduce(ours, None)

    assert list(itertools.islice(how(*arguments), 5)) == list(itertools.islice(theirs, 5))
