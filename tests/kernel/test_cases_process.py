"""What users do to a process, and what is there again after a restore."""

from __future__ import annotations

import json
import textwrap

import pytest

from tests.session_processes import below, frozen_of
from tests.waiting import until


def code(text: str) -> str:
    return textwrap.dedent(text).strip()


def test_01_polars_query_after_a_restore(notebook):
    notebook.run(
        code("""
        import polars as pl
        df = pl.DataFrame({"k": [i % 7 for i in range(100_000)], "v": range(100_000)})
        def totals():
            return df.group_by("k").agg(pl.col("v").sum()).sort("k")["v"].to_list()
        before = totals(); print(before)
        """)
    )
    doubled = "df = df.with_columns((pl.col('v') * 2).alias('v')); print(totals()[0])"
    assert notebook.run(doubled).out == "1428528570"
    notebook.run("%restore 1")
    cell = notebook.run(
        code("""
        after = totals(); print(after == before, after[0])
        lazy = df.lazy().filter(pl.col("v") > 99_990).collect(); print(lazy.height)
        """)
    )
    assert cell.out == "True 714264285\n9"
    assert cell.text("stderr") == ""


@pytest.mark.torch
@pytest.mark.slow
def test_02_torch_computes_and_its_data_loader_is_named(notebook):
    pytest.importorskip("torch")
    cell = notebook.run(
        code("""
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        torch.manual_seed(0); torch.set_num_threads(2)
        a = torch.ones(600, 600)
        net = torch.nn.Sequential(
            torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
        x = torch.randn(512, 512)
        (net(x) ** 2).mean().backward()
        g0 = net[0].weight.grad.clone()
        ds = TensorDataset(torch.arange(16.).reshape(16, 1) * torch.ones(16, 64))
        dl = DataLoader(ds, batch_size=4, num_workers=2, persistent_workers=True)
        def total(loader): return sum(b[0].sum().item() for b in loader)
        print((a @ a).sum().item(), total(dl))
        """)
    )
    assert cell.out == "216000000.0 7680.0"
    notebook.run("a.zero_(); net[0].weight.grad.zero_()")
    for _ in range(2):
        report = notebook.run("%restore 1").out
        assert report.count("(of dl)") == 2, report
        cell = notebook.run(
            code("""
            print((a @ a).sum().item(), torch.equal(net[0].weight.grad, g0))
            net.zero_grad(); (net(x) ** 2).mean().backward()
            print(torch.allclose(net[0].weight.grad, g0), torch.get_num_threads())
            print(total(DataLoader(ds, batch_size=4, num_workers=2)))
            """)
        )
        assert cell.out == "216000000.0 True\nTrue 2\n7680.0"
        assert notebook.run("total(dl)", ok=False).error.startswith("RuntimeError: DataLoader")


def test_04_worker_threads_live_again(notebook):
    notebook.run(
        code("""
        import threading, queue, logging, logging.handlers, io
        from concurrent.futures import ThreadPoolExecutor
        q, done = queue.Queue(), []
        def work():
            while True:
                i = q.get(); done.append(i * i); q.task_done()
        t = threading.Thread(target=work, daemon=True, name="squarer"); t.start()
        q.put(3); q.join()
        pool = ThreadPoolExecutor(2); list(pool.map(abs, [-1, -2, -3]))
        buf = io.StringIO(); lq = queue.Queue()
        listener = logging.handlers.QueueListener(lq, logging.StreamHandler(buf)); listener.start()
        log = logging.getLogger("tt"); log.setLevel("INFO")
        log.addHandler(logging.handlers.QueueHandler(lq))
        print(done, t.is_alive())
        """)
    )
    assert notebook.run("q.put(4); q.join(); print(done)").out == "[9, 16]"
    notebook.run("%restore 1")
    assert notebook.run("print(done, t.is_alive())").out == "[9] True"
    cell = notebook.run(
        "print(pool.submit(abs, -9).result(timeout=50))\n"
        "log.info('hello'); import time; end = time.monotonic() + 50\n"
        "while not buf.getvalue() and time.monotonic() < end: time.sleep(.01)\n"
        "print(repr(buf.getvalue()))"
    )
    assert cell.out == "9\n'hello\\n'"
    assert notebook.run("q.put(5); q.join(); print(done)").out == "[9, 25]"


def test_05_pools_of_processes(notebook):
    notebook.run(
        code("""
        import multiprocessing as mp
        from joblib import Parallel, delayed
        pool = mp.get_context("fork").Pool(2)
        print(pool.map(abs, [-1, -2]), Parallel(n_jobs=2)(delayed(abs)(-i) for i in range(4)))
        """)
    )
    notebook.run("x = 1")
    report = notebook.run("%restore 1").out
    assert report.count("(of pool)") == 2, report
    cell = notebook.run(
        code("""
        try: print(pool.map_async(abs, [-3, -4]).get(timeout=10))
        except Exception as e: print("old pool:", type(e).__name__)
        """)
    )
    assert cell.out == "[3, 4]" or cell.out.startswith("old pool:")
    cell = notebook.run("print(Parallel(n_jobs=2)(delayed(abs)(-i) for i in range(4)))")
    assert cell.out == "[0, 1, 2, 3]"
    cell = notebook.run(
        'pool2 = mp.get_context("fork").Pool(2); print(pool2.map(abs, [-5]))\n'
        'pool2.terminate(); pool.terminate(); pool.join(); print("closed")',
    )
    assert cell.out == "[5]\nclosed"


def test_05_workers_of_left_timelines_do_not_pile_up(notebook):
    notebook.run(
        "import multiprocessing as mp\npool = mp.get_context('fork').Pool(2); pool.map(abs, [-1])"
    )

    def others():
        return sum(not seen.name.startswith("tt-") for seen in below(notebook.pid))

    notebook.head()
    frozen_of(notebook.pid, least=2)
    most = others()
    for turn in range(4):
        notebook.run("%restore 1")
        notebook.run("1", silent=True)
        # those that were killed are there for a moment, and the pool starts new ones
        until(lambda: others() <= most, f"workers are left in turn {turn}")


def test_07_shared_memory_goes_back(notebook):
    notebook.run(
        code("""
        import numpy as np, mmap
        from multiprocessing import shared_memory
        np.arange(4, dtype="i8").tofile("mm.dat")
        m = np.memmap("mm.dat", dtype="i8", mode="r+", shape=(4,))
        an = mmap.mmap(-1, 16); an[:2] = b"ab"
        s = shared_memory.SharedMemory(create=True, size=8); s.buf[0] = 7
        arr = np.ndarray((1,), "u1", buffer=s.buf)
        """)
    )
    notebook.run('m[:] = 0; m.flush(); an[:2] = b"zz"; s.buf[0] = 200')
    notebook.run("%restore 1")
    cell = notebook.run(
        code("""
        print(m.tolist(), bytes(an[:2]), s.buf[0], int(arr[0]))
        print(np.fromfile("mm.dat", "i8").tolist())
        m[0] = 5; m.flush(); print(np.fromfile("mm.dat", "i8")[0])
        """)
    )
    assert cell.out == "[0, 1, 2, 3] b'ab' 7 7\n[0, 1, 2, 3]\n5"
    notebook.run("del arr; s.close(); s.unlink()")


def test_08_random_streams_go_on_and_ids_do_not_repeat(notebook):
    notebook.run(
        code("""
        import random, numpy as np, uuid, secrets, ssl, tempfile
        random.seed(42); np.random.seed(42); g = np.random.default_rng(7); r = random.Random(5)
        a = (random.random(), np.random.rand(), g.random(), r.random())
        """)
    )
    draw = code("""
        b = (random.random(), np.random.rand(), g.random(), r.random())
        ids = (uuid.uuid4().hex, secrets.token_hex(8), ssl.RAND_bytes(8).hex())
        print(json.dumps([b, ids]))
    """)
    seen = []
    for step in range(3):
        if step:
            notebook.run("%restore 1")
        seen.append(json.loads(notebook.run("import json\n" + draw).out))
    for numbers, _ in seen:
        assert numbers == [
            0.025010755222666936,
            0.9507143064099162,
            0.8972138009695755,
            0.7417869892607294,
        ]
    assert len({i for _, ids in seen for i in ids}) == 9


def test_10_a_child_sees_the_end_of_its_input(notebook):
    notebook.run(
        code("""
        import subprocess, sys
        src = "import sys; d = sys.stdin.read(); print(len(d)); sys.exit(3)"
        p = subprocess.Popen([sys.executable, "-c", src], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
        p.stdin.write("x" * 10); p.stdin.flush()
        """)
    )
    cell = notebook.run("p.stdin.close(); print(p.wait(timeout=50), p.stdout.read().strip())")
    assert cell.out == "3 10"
    report = notebook.run("%restore 1").out
    assert "child process" in report and "(of p)" in report, report
    cell = notebook.run(
        code("""
        try:
            p.stdin.close(); print("rc", p.wait(timeout=50), p.stdout.read().strip())
        except Exception as e:
            print("gone:", type(e).__name__)
        """)
    )
    assert cell.out.startswith("gone:")
    cell = notebook.run(
        'q = subprocess.run([sys.executable, "-c", "import sys; sys.exit(7)"]); print(q.returncode)'
    )
    assert cell.out == "7"


SERVER = code("""
    import http.server, threading, urllib.request, socket
    class H(http.server.BaseHTTPRequestHandler):
        body = b"v1"
        def do_GET(s): s.send_response(200); s.end_headers(); s.wfile.write(s.body)
        def log_message(s, *a): pass
    def start(port=0):
        srv = http.server.ThreadingHTTPServer(("127.0.0.1", port), H)
        threading.Thread(target=srv.serve_forever, daemon=True, name="httpd").start(); return srv
    def get(): return urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=50).read()
    srv = start(); port = srv.server_port; print(get())
""")


def test_11_a_server_in_a_thread(notebook):
    assert notebook.run(SERVER).out == "b'v1'"
    cell = notebook.run(
        code("""
        srv.shutdown(); srv.server_close()
        try: get(); print("?")
        except OSError as e: print("refused" if "refused" in str(e) else e)
        srv = start(port); H.body = b"v2"; print(get())
        """)
    )
    assert cell.out == "refused\nb'v2'"
    notebook.run("%restore 1")
    assert notebook.run("print(get())").out == "b'v1'"
    cell = notebook.run("srv.shutdown(); srv.server_close()\nsrv = start(port); print(get())")
    assert cell.out == "b'v1'"


def test_13_duckdb_holds_its_lock_again(notebook):
    cell = notebook.run(
        code("""
        import duckdb, subprocess, sys
        con = duckdb.connect("x.duckdb")
        con.execute("create table t as select range as i from range(10)")
        probe = ("import duckdb\\ntry: duckdb.connect('x.duckdb').close(); print('free')\\n"
                 "except Exception as e: print('locked')")
        def other():
            return subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True,
                                  timeout=50).stdout.strip()
        print(other())
        """)
    )
    assert cell.out == "locked"
    assert notebook.run('con.execute("delete from t"); con.close(); print(other())').out == "free"
    notebook.run("%restore 1")
    cell = notebook.run(
        'print(con.execute("select count(*) from t").fetchone()[0]); print(other())'
    )
    assert cell.out == "10\nlocked"
    cell = notebook.run(
        code("""
        con.execute("insert into t values (99)"); con.close()
        c2 = duckdb.connect("x.duckdb"); print(c2.execute("select count(*) from t").fetchone()[0])
        c2.close(); print(other())
        """)
    )
    assert cell.out == "11\nfree"


def test_14_buffers_and_offsets_of_open_files(notebook):
    notebook.run(
        code("""
        f = open("log.txt", "w"); f.write("one\\n")
        open("src.txt", "w").write("".join(f"l{i}\\n" for i in range(10)))
        r = open("src.txt", "rb", buffering=0); print(r.read(3))
        """)
    )
    notebook.run('f.write("two\\n"); f.flush(); print(r.read(9))')
    notebook.run("%restore 1")
    cell = notebook.run(
        "print(r.tell(), r.read(3), f.tell())\n"
        'f.write("three\\n"); f.flush(); print(open("log.txt").read().split())'
    )
    assert cell.out == "3 b'l1\\n' 4\n['one', 'three']"
    notebook.run("%restore 1")
    cell = notebook.run(
        'f.write("four\\n"); f.close(); print(open("log.txt").read().split(), r.read(3))'
    )
    assert cell.out == "['one', 'four'] b'l1\\n'"


@pytest.mark.parametrize("setup", ["", "import polars"])
def test_17_no_warning_about_forking_is_ever_shown(notebook, setup):
    notebook.run("")  # what is said of the start is said now
    cells = notebook.cells(
        code(f"""
        import warnings, threading, time
        {setup}
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        warnings.simplefilter("error")
        """),
        "x = 1",
        "cm = warnings.catch_warnings(record=True); seen = cm.__enter__()\n"
        'warnings.simplefilter("always")',
        "y = 2",
        "print([str(w.message)[:40] for w in seen]); cm.__exit__(None, None, None)",
    )
    assert [c.text("stderr") for c in cells] == [""] * 5
    assert cells[4].out == "[]"
    notebook.head()
    numbers = [c["number"] for c in notebook.command("list")["checkpoints"]]
    assert numbers == [0, 1, 2, 3, 4, 5, 6]
    notebook.run("%restore 3")
    assert notebook.run("print(x, 'y' in dir(), warnings.filters[0][0])").out == "1 False error"


def test_19_interval_timers(notebook):
    notebook.run(
        code("""
        import signal, time
        hits = []
        signal.signal(signal.SIGALRM, lambda *a: hits.append(time.time()))
        signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
        def hit(n):
            end = time.monotonic() + 50
            while len(hits) == n and time.monotonic() < end: time.sleep(.05)
            return len(hits) > n
        print(hit(0))
        """)
    )
    cell = notebook.run(
        "signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "n = len(hits); time.sleep(.5); print(len(hits) == n)"
    )
    assert cell.out == "True"
    notebook.run("%restore 1")
    cell = notebook.run("print(hit(len(hits)), signal.getitimer(signal.ITIMER_REAL)[1])")
    assert cell.out == "True 0.2"


def test_guard_by_alarm_may_raise_anywhere_in_a_cell_that_prints(notebook):
    """A handler that raises in the middle of a print must not tear the link's frames."""
    notebook.run(
        code("""
        import signal
        class Late(Exception): pass
        def late(*a): raise Late
        signal.signal(signal.SIGALRM, late)
        """)
    )
    for _ in range(20):
        cell = notebook.run(
            "signal.setitimer(signal.ITIMER_REAL, 0.01)\nwhile True: print('x' * 3000)", ok=False
        )
        assert cell.error.startswith("Late")
    assert notebook.run("print('fine')").out == "fine"


def test_sixteen_a_process_that_outgrows_its_budget(start_notebook):
    """Read-only cells copy pages by reference counts; the budget holds all the same."""
    notebook = start_notebook("--Supervisor.memory_fraction=0.01")
    notebook.run('big = [{"i": i, "s": str(i)} for i in range(400_000)]')
    for _ in range(8):
        notebook.run('s = sum(d["i"] for d in big)')
        notebook.head()
    states = {}

    def within():  # it is measured, then kept, in the background
        for c in notebook.command("list")["checkpoints"]:
            states[c["number"]] = next(k["state"] for k in c["captures"] if k["kind"] == "process")
        memory = notebook.command("status")["memory"]
        fits = memory["frozen_bytes"] <= memory["budget_bytes"] * 1.1
        return fits and "evicted" in states.values()

    until(within)
    assert states[max(states)] == "ready"
    gone = next(number for number, state in states.items() if state == "evicted")
    refused = notebook.run(f"%restore {gone}", ok=False)
    assert refused.error.startswith("RestoreRefused") and "memory budget" in refused.error
    assert notebook.run("print(len(big), s)").out == "400000 79999800000"
