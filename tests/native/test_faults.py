"""A system call that fails in the middle: the live process is unharmed, a wake is whole or none."""

from __future__ import annotations

import errno
import platform

import native_target as tt
import pytest
from native_build import need
from native_harness import Process, World

# x86-64 numbers; what the library calls and Python here does not
CALLS = {
    "rt_tgsigqueueinfo": 297,
    "getcwd": 79,
    "tee": 276,
    "sched_getattr": 315,
    "sched_getaffinity": 204,
    "waitid": 247,
    "getitimer": 36,
    "kcmp": 312,
    "clone": 56,
    "clone3": 435,
    "fstatfs": 138,
    "mincore": 27,
    "sysinfo": 99,
    "close_range": 436,
    "pipe2": 293,
    "readlinkat": 267,
    "timer_gettime": 224,
    "setsid": 112,
    "dup3": 292,
    "memfd_create": 319,
    "mremap": 25,
    "rseq": 334,
    "prlimit64": 302,
    "sched_setaffinity": 203,
    "epoll_ctl": 233,
    "epoll_create1": 291,
    "eventfd2": 290,
    "socketpair": 53,
    "timerfd_create": 283,
    "accept4": 288,
    "set_robust_list": 273,
}
SETUP = """
import ctypes, fcntl, mmap, os, resource, select, socket, threading, time
states = ctypes.CDLL(os.environ["TT_STATES"])
n = 0
def count():
    global n
    while True:
        n += 1; time.sleep(.002)
threading.Thread(target=count, daemon=True).start()
def counts():
    before = n; until = time.monotonic() + 60
    while n == before and time.monotonic() < until:
        time.sleep(.002)
    return n > before
def listing():
    return sorted(os.listdir("/proc/self/fd"), key=int)
r, w = os.pipe(); os.write(w, b"p"); a, b = socket.socketpair(); a.send(b"s")
e = select.epoll(); e.register(r); v = os.eventfd(3); m = os.memfd_create("m"); os.write(m, b"m")
an = mmap.mmap(-1, 8192); an[0] = 7; f = os.open("f", os.O_RDWR | os.O_CREAT); d = os.dup(f)
l = socket.create_server(("127.0.0.1", int(os.environ["TT_PORT"])))
states.state_timers()
"""


def whole(process: Process) -> None:
    assert process.value("counts()")


@pytest.mark.parametrize("name", CALLS)
def test_system_call_that_fails(world: World, name: str) -> None:
    if platform.machine() != "x86_64":
        need("an x86-64 machine")
    live = world.start(SETUP)
    before = live.value("listing()")
    error = errno.ENOSYS if name in ("clone3", "close_range", "kcmp", "rseq") else errno.ENOMEM
    live.run(f"assert states.state_fail({CALLS[name]}, {error}) == 0")
    frozen = live.freeze()
    whole(live)
    assert live.value("listing()") == before
    assert live.value("[an[0], os.pread(m, 1, 0)[0], len(e.poll(0))]") == [7, 109, 1]
    result = frozen.made["result"]
    assert result == 0 or -result == error, frozen.made
    if result or name == "accept4":
        return
    live.kill()
    try:
        woken = frozen.wake()
    except OSError:
        assert frozen.ask(tt.PING).error == 0  # nothing half-woken is left
        return
    whole(woken)


def test_socket_pairs_without_sock_diag(world: World) -> None:
    live = world.start(SETUP + "pairs = [socket.socketpair() for _ in range(3)]\n")
    live.run("for i, (x, y) in enumerate(pairs): x.send(b'%d' % i); y.send(b'-%d' % i)")
    live.run(f"assert states.state_fail(41, {errno.EACCES}) == 0  # socket(2)")
    frozen = live.freeze()
    assert [line[0] for line in frozen.report] == ["socket"] * 4
    live.kill()
    woken = frozen.wake()
    assert woken.value("[[y.recv(9).decode(), x.recv(9).decode()] for x, y in pairs]") == [
        ["0", "-0"],
        ["1", "-1"],
        ["2", "-2"],
    ]


def test_no_more_threads_allowed_at_the_wake(world: World) -> None:
    live = world.start(SETUP)
    if live.value("os.getuid()") == 0:
        pytest.skip("needs an ordinary user: root has no limit of processes")
    live.run("sleep = dict(target=time.sleep, args=(1e6,), daemon=True)")
    live.run("for _ in range(10): threading.Thread(**sleep).start()")
    frozen = live.freeze()
    pid = frozen.facts["frozen_pid"]
    helper = world.start(
        f"import resource as r\ndef most(n): r.prlimit({pid}, 6, (n, r.prlimit({pid}, 6)[1]))"
    )
    live.kill()
    steps = []
    for limit in range(1, 60):
        helper.run(f"most({limit})")  # RLIMIT_NPROC
        try:
            woken = frozen.wake()
        except OSError as failed:
            steps.append(int(str(failed).rsplit(" ", 1)[1]))
            assert failed.errno == errno.EAGAIN
            continue
        whole(woken)
        break
    assert steps[0] == 1 and steps[-1] == 5 and steps == sorted(steps)
    assert frozen.ask(tt.PING).error == 0
