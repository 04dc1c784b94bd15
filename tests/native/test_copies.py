"""Copies that are woken to be read: beside the live process, and without a trace in it."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import select
import signal
import threading

import native_target as tt
import pytest
from native_build import need
from native_harness import Process, World, until

from kernel_runtime.executor.confine import program
from kernel_runtime.executor.native import OpenFile, open_files, running_python

NATIVE = """
import ctypes, os, select, sys, threading, time
states = ctypes.CDLL(os.environ["TT_STATES"])
states.state_ticks.restype = ctypes.c_uint64
KINDS = "SPIN MALLOC NANOSLEEP SEM COND READ EPOLL".split()
epoll = select.epoll()
for slot, kind in enumerate(("NANOSLEEP", "MALLOC", "EPOLL")):
    assert states.state_start(slot, KINDS.index(kind), epoll.fileno()) == 0
def native_goes_on():
    before, until = [states.state_ticks(i) for i in range(3)], time.monotonic() + 60
    while time.monotonic() < until:
        if all(states.state_ticks(i) > b for i, b in enumerate(before)):
            return True
        time.sleep(.005)
    return False
def tids():
    return sorted(map(int, os.listdir("/proc/self/task")))
"""

COUNTING = """
n = 0
log = open("log", "w", buffering=1)
def count():
    global n
    while True:
        n += 1; print(n, file=log); time.sleep(.001)
for i in range(3):
    threading.Thread(target=count, daemon=True).start()
def counts():
    before = n; until = time.monotonic() + 60
    while n == before and time.monotonic() < until:
        time.sleep(.002)
    return n > before
"""


def test_threads_of_python_are_not_made(any_world: World) -> None:
    live = any_world.start(NATIVE + COUNTING)
    frozen = live.freeze()
    assert frozen.facts["threads"] == 6
    for _ in range(3):
        copy = frozen.wake(tt.WAKE_COPY)
        facts = copy.woken["facts"]
        assert (copy.woken["result"], facts["woken_copy"], facts["threads"]) == (1, 1, 3)
        assert facts["woken_ids_kept"] == 0
        before = copy.value("n")
        assert copy.value("native_goes_on()")
        assert copy.value("[n, len(tids())]") == [before, 4]
        assert not set(copy.value("tids()")) & set(live.value("tids()"))
        assert live.value("counts() and native_goes_on()")
        copy.kill()
    live.kill()
    for k in (1, 2):  # copies are not counted
        woken = frozen.wake()
        assert (woken.woken["result"], woken.woken["facts"]["woken_copy"]) == (k, 0)
        assert woken.value("counts() and native_goes_on()")
        woken.kill()


OPEN = """
import fcntl, mmap, resource, signal, socket
name = 'odd\\tname \\\\ \\xff'.encode("latin-1")
text = open(name, "w+b", buffering=0); text.write(b"0123456789"); text.seek(4)
os.set_inheritable(text.fileno(), True)
again = os.dup(text.fileno())
other = open("other", "a+")
fcntl.flock(other, fcntl.LOCK_EX); fcntl.lockf(text, fcntl.LOCK_EX, 3, 2)
port = socket.create_server(("127.0.0.1", int(os.environ["TT_PORT"])))
path = socket.socket(socket.AF_UNIX); path.bind("path"); path.listen()
r, w = os.pipe(); os.write(w, b"in the pipe")
pair = socket.socketpair(); pair[0].send(b"in the pair")
memfd = os.memfd_create("shared"); os.truncate(memfd, 4096)
segment = f"/dev/shm/tt_{os.urandom(8).hex()}"  # a pid is another one's too, in its namespace
shm = os.open(segment, os.O_RDWR | os.O_CREAT)
os.truncate(shm, 4096)
gone = os.open("gone", os.O_RDWR | os.O_CREAT); os.truncate(gone, 4096); os.unlink("gone")
mapped = open("mapped", "w+b"); mapped.truncate(4096)
maps = [mmap.mmap(fd, 4096) for fd in (-1, memfd, shm, gone, mapped.fileno())]
for m in maps:
    m[:6] = b"shared"
rang = []
def ring(number, frame):
    rang.append(number); os.write(1, b"rang")
signal.signal(signal.SIGUSR1, ring); signal.signal(signal.SIGALRM, ring)
signal.setitimer(signal.ITIMER_REAL, 3600, 3600)
def locks():
    "Of this process, without the number of the line."
    own = f" {os.getpid()} "
    return sorted(l.split(":", 1)[1] for l in open("/proc/locks") if own in l)
def ours():
    with open("/proc/self/timers") as f:
        timers = f.read()
    return [text.tell(), other.tell(), locks(), port.getsockname(), [m[:6].decode() for m in maps],
            signal.getitimer(signal.ITIMER_REAL)[1], timers, os.listdir("/proc/self/fd").__len__(),
            sorted(map(str, os.listdir("."))), os.getcwd(), os.getpriority(os.PRIO_PROCESS, 0)]
def fails(what, *args):
    try:
        what(*args)
    except OSError as e:
        return e.errno
"""


@pytest.fixture
def busy(any_world: World) -> Process:
    return any_world.start(NATIVE + OPEN)


def test_live_process_is_not_touched(any_world: World, busy: Process) -> None:
    frozen = busy.freeze()
    before = busy.value("ours()")
    assert any("ADVISORY" in line for line in before[2])
    for _ in range(2):
        copy = frozen.wake(tt.WAKE_COPY)
        assert copy.value("[m[:6].decode() for m in maps]") == ["shared"] * 5
        copy.run("for m in maps: m[:6] = b'copied'; m.flush() if m is maps[4] else None")
        assert copy.value("[m[:6].decode() for m in maps]") == ["copied"] * 5
        assert (
            copy.value("[fails(os.read, fd, 1) for fd in (text.fileno(), r, memfd, shm)]")
            == [9] * 4
        )
        assert copy.value("[fails(s.getsockname) for s in (port, path, *pair)]") == [9, 9, 9, 9]
        assert copy.value("[fails(os.write, fd, b'x') for fd in (again, w, gone)]") == [9, 9, 9]
        assert copy.value("locks()") == []
        assert copy.value("[signal.getitimer(i) for i in range(3)]") == [[0, 0]] * 3
        assert copy.value("open('/proc/self/timers').read()") == ""
        assert copy.value("os.getcwd()") == before[-2]
        assert copy.value("[os.readlink(f'/proc/self/fd/{i}') for i in (0,)]") == ["/dev/null"]
        copy.run("print('said', flush=True); os.write(2, b'erred')")
        assert (copy.output(), copy.errors()) == ("said\n", "erred")
        assert busy.value("ours()") == before
        copy.kill()
        assert busy.value("ours()") == before
    assert busy.value("os.read(r, 99).decode() + pair[1].recv(99).decode()") == (
        "in the pipein the pair"
    )
    assert busy.output() == busy.errors() == ""
    busy.run("rang.clear(); signal.raise_signal(signal.SIGUSR1)")
    assert busy.value("rang") == [10]
    busy.run("os.unlink(segment)")


def test_frozen_process_wakes_as_before(any_world: World, busy: Process) -> None:
    frozen = busy.freeze()
    before = busy.value("[text.tell(), locks().__len__(), port.getsockname()]")
    frozen.wake(tt.WAKE_COPY).kill()
    copy = frozen.wake(tt.WAKE_COPY)  # lives on while the session is restored
    busy.kill()
    woken = frozen.wake()
    assert woken.woken["facts"]["woken_ids_kept"] == (not any_world.kind.endswith("plain"))
    assert woken.value("[text.tell(), locks().__len__(), port.getsockname()]") == before
    assert woken.value("os.read(r, 99).decode()") == "in the pipe"
    assert woken.value("[m[:6].decode() for m in maps]") == ["shared"] * 5
    assert copy.value("native_goes_on()") and woken.value("native_goes_on()")
    woken.run("os.unlink(os.readlink(f'/proc/self/fd/{shm}'))")


def test_copies_of_twins_and_of_moved_processes(world: World) -> None:
    live = world.start(NATIVE + COUNTING)
    frozen = live.freeze()
    assert frozen.twin().wake(tt.WAKE_COPY).value("native_goes_on()")
    moved = live.freeze(flags=tt.MOVE)
    moved.ask(tt.PING)
    copy = moved.wake(tt.WAKE_COPY)
    assert copy.value("native_goes_on()") and copy.value("len(tids())") == 4
    assert moved.wake().value("counts()")


def test_report_names_the_files(world: World) -> None:
    live = world.start(NATIVE + OPEN)
    numbers = live.value("[text.fileno(), again, other.fileno()]")
    shm = live.value("[shm, os.readlink(f'/proc/self/fd/{shm}')]")
    copy = live.freeze().wake(tt.WAKE_COPY)
    live.run("os.unlink(os.readlink(f'/proc/self/fd/{shm}'))")
    files = {line[1]: line[2].split(" ", 2) for line in copy.woken["report"] if line[0] == "file"}
    folder = str(world.folder)
    text = [f"{folder}/odd\\x09name \\x5c \\xff", "4"]
    for fd in numbers[:2]:
        flags, offset, path = files[str(fd)]
        assert [path, offset] == text and int(flags, 8) & os.O_ACCMODE == os.O_RDWR
    flags, offset, path = files[str(numbers[2])]
    assert path == f"{folder}/other" and int(flags, 8) & os.O_APPEND
    assert files[str(shm[0])][2] == shm[1]
    mapped = [line for line in copy.woken["report"] if line[0] == "memory"]
    assert [line[1] for line in mapped] == [f"{folder}/mapped"]


def test_no_handler_of_the_user_runs(world: World) -> None:
    live = world.start(NATIVE + OPEN + "os.unlink(segment)\n")
    copy = live.freeze().wake(tt.WAKE_COPY)
    for number in (signal.SIGUSR1, signal.SIGALRM, signal.SIGINT):
        world.signal(copy.pid, number)
    assert copy.value("rang") == []
    assert copy.output() == ""
    world.signal(copy.pid, signal.SIGTERM)
    assert until(lambda: copy.pid not in world.pids() or ended(copy))


def ended(copy: Process) -> bool:
    return bool(select.select([copy.link], [], [], 0)[0])


def test_redirected_output_is_not_written_to(world: World) -> None:
    live = world.start(NATIVE + "os.dup2(os.open('f', os.O_CREAT | os.O_WRONLY), 1); os.close(0)\n")
    live.run("os.write(1, b'live')")
    copy = live.freeze().wake(tt.WAKE_COPY)
    assert copy.value("os.write(1, b'copy') + len(os.read(0, 1))") == 4
    assert copy.output() == "copy"
    assert (world.folder / "f").read_text() == "live"


def test_steps_back(any_world: World) -> None:
    live = any_world.start(NATIVE + COUNTING)
    copy = live.freeze().wake(tt.WAKE_COPY)
    nice = "{os.getpriority(os.PRIO_PROCESS, t) for t in tids()}"
    assert copy.value(f"list({nice})") == [10]
    ioprio_get = {"x86_64": 252, "aarch64": 31}[os.uname().machine]
    priorities = f"[ctypes.CDLL(None).syscall({ioprio_get}, 1, t) for t in tids()]"
    assert copy.value(priorities) == [2 << 13 | 7] * 4  # the last of "best effort"
    assert copy.value("open('/proc/self/oom_score_adj').read()") == "1000\n"
    assert live.value(f"list({nice})") == [0]


def test_ends_with_the_init(plain_world: World) -> None:
    live = plain_world.start(NATIVE + COUNTING)
    frozen = live.freeze()
    copy = frozen.wake(tt.WAKE_COPY)
    status = pathlib.Path(f"/proc/{copy.pid}/status").read_text()
    assert f"PPid:\t{plain_world.init.pid}\n" in status
    plain_world.init.kill()
    frozen.quit()  # which nothing but its supervisor ends
    copy.link.settimeout(60)
    assert copy.link.recv(99) == b""
    for process in plain_world.processes:
        process.close()
    assert until(lambda: not pathlib.Path(f"/proc/{live.pid}").exists())


def test_what_is_refused(world: World) -> None:
    live = world.start(NATIVE + COUNTING)
    frozen = live.freeze()
    for flag in (tt.WAKE_CONSUME, tt.WAKE_KEEP_IDS_OR_FAIL):
        with pytest.raises(OSError) as failed:
            frozen.wake(tt.WAKE_COPY | flag)
        assert failed.value.errno == 22
    unknown = live.freeze(python_count=0)
    with pytest.raises(OSError) as failed:
        unknown.wake(tt.WAKE_COPY)
    assert failed.value.errno == 22
    assert live.freeze(python_threads=0).made["result"] == -22
    live.kill()
    assert unknown.wake().value("counts()")


def confine(live: Process) -> dict[str, int]:
    """Have a filter lie in the target; the options that name it to tt_freeze."""
    code = program(os.uname().machine)
    live.run(f"filter = ctypes.create_string_buffer(bytes.fromhex({code.hex()!r}))")
    address = live.value("ctypes.addressof(filter)")
    return {"filter": address, "filter_count": len(code) // 8}


FAILS = """
import ctypes, os, pathlib, signal, socket
def fails(what, *args):
    try:
        what(*args)
    except OSError as e:
        return e.errno
def kept_in():
    mine = pathlib.Path("/proc/self/task")
    return sorted({l for t in mine.iterdir() for l in (t / "status").read_text().splitlines()
                   if l.startswith(("Seccomp:", "NoNewPrivs:"))})
"""


def test_copy_is_confined_before_any_thread_runs(any_world: World) -> None:
    live = any_world.start(NATIVE + COUNTING + FAILS)
    frozen = live.freeze(**confine(live))
    copy = frozen.wake(tt.WAKE_COPY)
    assert copy.value("kept_in()") == ["NoNewPrivs:\t1", "Seccomp:\t2"]
    assert copy.value("native_goes_on()")
    refused = "[fails(socket.socket), fails(os.fork), fails(os.unlink, 'log')]"
    assert copy.value(refused) == [1, 1, 1]
    assert copy.value(f"[fails(os.kill, p, 0) for p in (os.getpid(), 1, {live.pid})]") == [
        *(None, 1, 1)
    ]
    assert live.value("kept_in()")[1] == "Seccomp:\t0"
    assert live.value("counts()")
    live.kill()
    woken = frozen.wake()
    assert woken.value("kept_in()")[1] == "Seccomp:\t0" and woken.value("counts()")


def test_filter_that_cannot_be_set_fails_the_copy(world: World) -> None:
    live = world.start(NATIVE + COUNTING + FAILS)
    frozen = live.freeze(**{**confine(live), "filter_count": 1})  # has no end
    with pytest.raises(OSError) as failed:
        frozen.wake(tt.WAKE_COPY)
    assert failed.value.errno == 22
    assert live.value("counts()")


@pytest.mark.libraries
def test_polars_computes_in_a_copy(world: World) -> None:
    if importlib.util.find_spec("polars") is None:
        need("python module polars")
    live = world.start(
        "import io, pickle\nimport polars as pl, numpy as np\n"
        + NATIVE
        + COUNTING
        + 'df = pl.DataFrame({"k": [i % 7 for i in range(100_000)], "v": range(100_000)})\n'
        + "a = np.ones((300, 300))\n"
        + 'def job():\n  t = df.group_by("k").agg(pl.col("v").sum()).sort("k")\n'
        + '  return [t["v"].to_list()[0], pickle.loads(pickle.dumps(df)).equals(df),'
        + "float((a @ a).sum())]\n"
    )
    expected = [714264285, True, 27000000.0]
    assert live.value("job()") == expected
    frozen = live.freeze(**confine(live))
    for _ in range(3):
        copy = frozen.wake(tt.WAKE_COPY)
        assert copy.value("job()") == expected
        copy.kill()
    assert live.value("job()") == expected and live.value("counts()")


def test_threads_that_want_the_interpreter(world: World) -> None:
    """They have asked for its lock, and are not there to take it."""
    live = world.start(
        NATIVE
        + "forked = []\nos.register_at_fork(after_in_child=lambda: forked.append(1))\n"
        + "def spin():\n  n = 0\n  while spinning: n += 1\n"
        + "def start():\n  global spinning; spinning = True\n"
        + "  for _ in range(2): threading.Thread(target=spin, daemon=True).start()\n"
        + "def work():\n  found = []\n"
        + "  t = threading.Thread(target=found.append, args=(1,)); t.start(); t.join()\n"
        + "  return found + [threading.active_count()]\n"
    )
    for _ in range(6):
        live.run("start()")
        frozen = live.freeze()
        live.run("spinning = False")
        copy = frozen.wake(tt.WAKE_COPY)
        assert copy.value("work()") == [1, 1] and copy.value("forked") == [1]
        copy.kill()
        frozen.quit()
    assert live.value("forked") == []


def test_open_files_of_a_report() -> None:
    notes = [
        ["file", "7", "100002 5 /a\\x09b \\x5cx41 \\xff"],
        ["file", "fd 8", "/gone: not opened again"],
        ["memory", "/mapped", "read as the file is now"],
    ]
    path = os.fsdecode(b"/a\tb \\x41 \xff")
    assert open_files(notes) == [OpenFile(7, 0o100002, 5, path)]


def test_who_runs_python() -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    try:
        assert running_python()[0] == threading.get_ident()
        assert thread.ident in running_python()[1:]
    finally:
        go.set()
        thread.join()
