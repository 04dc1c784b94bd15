"""What multiprocessing keeps outside of the process: servers, trackers, semaphores with names."""

from __future__ import annotations

import textwrap

import pytest

WORKER = textwrap.dedent("""
    def work(lock, value, semaphore, queue):
        with lock:
            value.value += 1
        semaphore.acquire()
        queue.put("done")
""")

NEW_PROCESS = textwrap.dedent("""
    p = context.Process(target=worker.work, args=(lock, value, semaphore, queue))
    p.start()
    print(queue.get(timeout=50))
    p.join()
    print(p.exitcode, value.value, semaphore.get_value())
""")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_locks_and_queues_from_before_go_to_new_processes(notebook, method):
    """They are found by name, and the left timeline's tracker has deleted the names."""
    (notebook.cwd / "worker.py").write_text(WORKER)
    notebook.run(
        "import multiprocessing, sys, worker\n"
        f"context = multiprocessing.get_context({method!r})\n"
        "lock, value = context.Lock(), context.Value('i', 5)\n"
        "semaphore, queue = context.Semaphore(3), context.Queue()\n"
    )
    first = notebook.run(NEW_PROCESS + "lock.acquire()")
    assert first.out == "done\n0 6 2"
    at = notebook.head()["number"]
    notebook.run("lock.release(); semaphore.acquire(); value.value = 100; queue.put('left')")
    report = notebook.run(f"%restore {at}").out
    assert "shared memory" not in report
    cell = notebook.run("print(value.value, semaphore.get_value(), lock.acquire(block=False))")
    assert cell.out == "6 2 False"
    assert notebook.run("lock.release()\n" + NEW_PROCESS).out == "done\n0 7 1"


def test_semaphores_of_a_left_timeline_do_not_pile_up(notebook):
    """Else each later checkpoint and restore names them as not held."""
    notebook.run(
        "import multiprocessing, os\ncontext = multiprocessing.get_context('spawn')\n"
        "def names(): return sum(name.startswith('sem.') for name in os.listdir('/dev/shm'))"
    )
    notebook.run("locks = [context.Lock() for _ in range(3)]; locks[0].acquire()")
    assert notebook.run("print(names())").out == "3"
    notebook.run("%restore 1")
    assert notebook.run("print(names())").out == "0"
    assert "shared memory" not in notebook.run("%restore 1").out
    notebook.run("%restore 3")
    assert notebook.run("print(names(), locks[0].acquire(block=False))").out == "3 False"


def test_a_pool_that_is_made_after_a_restore(notebook):
    """By the server that processes are forked from, which is gone."""
    notebook.run(
        "import multiprocessing\n"
        "context = multiprocessing.get_context('forkserver')\n"
        "p = context.Process(target=abs, args=(-1,)); p.start(); p.join(); print(p.exitcode)"
    )
    # as when the process ends: the directory is in a place that is not rolled back
    notebook.run("import shutil, multiprocessing.util\n")
    notebook.run("shutil.rmtree(multiprocessing.util.get_temp_dir())")
    notebook.run("%restore 1")
    cell = notebook.run(
        "pool = context.Pool(2)\n"
        "print(pool.map_async(abs, [-3, -4]).get(timeout=50)); pool.terminate(); pool.join()\n"
        "from concurrent.futures import ProcessPoolExecutor\n"
        "with ProcessPoolExecutor(1, mp_context=context) as pool: print(*pool.map(abs, [-5]))"
    )
    assert cell.out == "[3, 4]\n5"


def test_a_weak_proxy_does_not_hide_that_a_child_is_gone(notebook):
    """isinstance() asks the object that a proxy stands for, and raises when that is gone."""
    notebook.run(
        "import subprocess, weakref\n"
        "class Thing: pass\n"
        "thing = Thing(); proxy = weakref.proxy(thing); del thing\n"
        "p = subprocess.Popen(['sleep', '600'])"
    )
    notebook.run("p.kill()")
    report = notebook.run("%restore 1").out
    assert "child process" in report and "not mended" not in report
    cell = notebook.run(
        "print(p.poll())\n"
        "try: p.wait(timeout=10)\n"
        "except ChildProcessError as error: print('not brought back' in str(error))"
    )
    assert cell.out == "-9\nTrue"


def test_a_thread_that_waits_for_a_child_is_not_told_zero(notebook):
    """Popen takes 0 for the exit code of a child that waitpid(2) does not know."""
    notebook.run(
        "import subprocess, threading\n"
        "children = [subprocess.Popen(['sleep', '600']) for _ in range(8)]\n"
        "codes = []\n"
        "def wait(child): codes.append(child.wait())\n"
        "threads = [threading.Thread(target=wait, args=(child,)) for child in children]\n"
        "for thread in threads: thread.start()"
    )
    notebook.run("for child in children: child.kill()")
    notebook.run("%restore 1")
    cell = notebook.run("for thread in threads: thread.join(30)\nprint(*codes)")
    assert cell.out == " ".join(["-9"] * 8)
    assert notebook.run("{child.returncode for child in children}").result == "{-9}"
