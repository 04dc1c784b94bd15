"""The frozen process's socket, the ways to wake, and what happens when something is refused."""

from __future__ import annotations

import ctypes
import os
import socket

import native_target as tt
import pytest
from native_harness import Frozen, World, until

SETUP = """
import ctypes, os, resource, socket, sys, threading, time
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
def tids():
    return sorted(map(int, os.listdir("/proc/self/task")))
x = "at the freeze"
"""


def gone(frozen: Frozen) -> bool:
    """Whether nobody answers any more."""
    try:
        frozen.ask(tt.PING)
    except OSError:
        return True
    return False


def test_ping_and_quit(any_world: World) -> None:
    live = any_world.start(SETUP)
    frozen = live.freeze()
    assert frozen.ask(tt.PING).pid == frozen.facts["frozen_pid"]
    frozen.quit()
    any_world.kill(frozen.facts["frozen_pid"])
    assert gone(frozen)
    assert live.value("counts()")


def test_bad_requests_change_nothing(world: World) -> None:
    live = world.start(SETUP)
    frozen = live.freeze()
    null = os.open("/dev/null", os.O_RDWR)
    try:
        assert frozen.ask(99).error == 22
        assert frozen.ask(tt.WAKE).error == 22  # no descriptors
        assert frozen.ask(tt.WAKE, fds=(null,)).error == 22
        assert frozen.ask(tt.WAKE, fds=(null,) * 4).error == 22
        assert frozen.ask(tt.TWIN).error == 22
        assert frozen.ask(tt.PING, fds=(null,) * 6).error == 22
    finally:
        os.close(null)
    for data in (b"", b"x", bytes(tt.Request(7, tt.QUIT)), b"\0" * 500):
        with frozen.connect() as connection:
            connection.send(data)
            assert tt.Answer.from_buffer_copy(connection.recv(99)).error == 22
    with frozen.connect():
        pass  # says nothing
    assert frozen.ask(tt.PING).error == 0
    count = f"len(os.listdir('/proc/{frozen.facts['frozen_pid']}/fd'))"
    assert until(lambda: live.value(count) == 1)
    live.kill()
    assert frozen.wake().value("counts()")


def test_foreign_peer_is_refused(world: World) -> None:
    live = world.start(SETUP)
    frozen = live.freeze(supervisor_pid=1)  # the init; we are outside, so we show as 0
    with frozen.connect() as connection:
        try:
            connection.send(bytes(tt.Request(ctypes.sizeof(tt.Request), tt.PING)))
            assert connection.recv(99) == b""
        except OSError:
            pass
    outside = live.freeze(supervisor_pid=0)
    assert outside.ask(tt.PING).error == 0


def test_move(any_world: World) -> None:
    live = any_world.start(SETUP)
    tids = live.value("tids()")
    frozen = live.freeze(flags=tt.MOVE)
    pid = frozen.ask(tt.PING).pid
    assert pid != live.pid
    live.kill()  # reaped by the init already
    for k in (1, 2):
        woken = frozen.wake()
        assert woken.woken["result"] == k
        assert woken.value("[x, counts(), len(tids())]") == ["at the freeze", True, len(tids)]
        if not any_world.kind.endswith("plain"):
            assert woken.value("tids()") == tids
        again = woken.freeze(flags=tt.MOVE)
        again.ask(tt.PING)
        woken.kill()
        deeper = again.wake(tt.WAKE_CONSUME)
        assert deeper.value("[x, counts()]") == ["at the freeze", True]
        assert gone(again)
        deeper.kill()


def test_move_that_fails_leaves_the_process_unharmed(world: World) -> None:
    live = world.start(SETUP + "soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)\n")
    if live.value("os.getuid()") == 0:
        pytest.skip("needs an ordinary user: root has no limit of processes")
    live.run("resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))")
    live.run(
        "l = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); l.bind('l'); l.listen()\n"
        "t0 = tids(); r = [target.freeze(l.fileno(), {'flags': f}) for f in (1, 0)]\n"
    )
    assert live.value("[r, counts(), tids() == t0]") == [[-11, -11], True, True]
    live.run("resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))")
    frozen = live.freeze()
    live.kill()
    assert frozen.wake().value("counts()")


def test_consume(any_world: World) -> None:
    live = any_world.start(SETUP)
    frozen = live.freeze()
    live.run("x = 'later'")
    live.kill()
    woken = frozen.wake(tt.WAKE_CONSUME)
    assert woken.value("[x, counts()]") == ["at the freeze", True]
    assert woken.woken["facts"]["woken_ids_kept"] == (not any_world.kind.endswith("plain"))
    assert gone(frozen)
    frozen = woken.freeze()
    woken.kill()
    assert frozen.wake(tt.WAKE_CONSUME).value("[x, counts()]") == ["at the freeze", True]


def test_twins(any_world: World) -> None:
    live = any_world.start(SETUP)
    frozen = live.freeze()
    twin = frozen.twin()
    second = twin.twin()
    assert twin.ask(tt.PING).pid == twin.made["twin_pid"]
    assert len({f.ask(tt.PING).pid for f in (frozen, twin, second)}) == 3
    live.kill()
    for each, flags in ((twin, tt.WAKE_CONSUME), (second, 0), (frozen, tt.WAKE_CONSUME)):
        woken = each.wake(flags)
        assert woken.value("[x, counts()]") == ["at the freeze", True]
        woken.kill()
    assert gone(twin) and not gone(second)
    any_world.kill(frozen.made["facts"]["frozen_pid"])
    woken = second.wake()
    assert woken.value("counts()")


def test_killed_frozen_process_harms_nobody(world: World) -> None:
    live = world.start(SETUP)
    first, second = live.freeze(), live.freeze()
    world.kill(first.facts["frozen_pid"])
    assert gone(first) and not gone(second)
    assert live.value("counts()")
    live.kill()
    assert second.wake().value("counts()")


def test_signals_do_not_reach_user_code_in_a_frozen_process(world: World) -> None:
    live = world.start(
        SETUP + "import signal\nsignal.signal(signal.SIGUSR1, lambda *a: os.write(1, b'handler'))\n"
    )
    frozen = live.freeze()
    for number in (10, 2, 15, 1):
        world.signal(frozen.facts["frozen_pid"], number)
    assert frozen.ask(tt.PING).error == 0
    live.kill()
    woken = frozen.wake()
    assert woken.output() == ""


def test_wrong_arguments(world: World) -> None:
    live = world.start(SETUP)
    assert live.freeze(size=8).made["result"] == -22
    refused = live.freeze(listen_fd=999)
    assert refused.made["result"] == -22 and refused.report[0][0] == "refused"
    assert live.freeze(out_fd=998).made["result"] == -22
    assert live.value("target.library.tt_freeze(None, None, 0)") == -22
    assert live.value("counts()")


def test_report_that_does_not_fit_says_so(world: World) -> None:
    live = world.start(
        SETUP + "import select\ni = [os.pidfd_open(os.getpid()) for _ in range(50)]\n"
    )
    for size in (0, 10, 60, 200, 1000):
        live.run(f"target.report = ctypes.create_string_buffer({size + 1})")
        live.run(f"target.report = ctypes.create_string_buffer({max(size, 1)})")
        report = live.freeze().report
        assert not report or report[-1][0] == "more"
        assert len(report) < 50


def test_no_descriptors_left(world: World) -> None:
    """RLIMIT_NOFILE is used up: an error, and the process runs on."""
    live = world.start(SETUP + "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n")
    live.run(
        "l = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); l.bind('l'); l.listen()\n"
        "keep = []\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, hard))\n"
        "try:\n  while True: keep.append(os.dup(0))\n"
        "except OSError: pass\n"
        "r = []\n"
        "for i in range(5):\n  r.append(target.freeze(l.fileno(), {})); os.close(keep.pop())\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))\n"
    )
    results = live.value("r")
    assert results[0] == -24 and results[-1] == 0 and set(results) == {-24, 0}
    assert live.value("counts()")


def test_no_memory_left(world: World) -> None:
    live = world.start(SETUP)
    live.run(
        "l = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); l.bind('l'); l.listen()\n"
        "big = os.memfd_create('big'); os.pwrite(big, b'x' * (64 << 20), 0)\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_AS)\n"
        "size = int(open('/proc/self/statm').read().split()[0]) * 4096\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 20), hard))\n"
        "r = target.freeze(l.fileno(), {})\n"
        "resource.setrlimit(resource.RLIMIT_AS, (soft, hard))\n"
    )
    assert live.value("r") in (0, -12)
    assert live.value("counts()")
    assert live.freeze().made["result"] == 0


def test_wake_without_processes_left_is_an_error(world: World) -> None:
    live = world.start(SETUP)
    if live.value("os.getuid()") == 0:
        pytest.skip("needs an ordinary user: root has no limit of processes")
    live.run("resource.setrlimit(resource.RLIMIT_NPROC, (resource.getrlimit(6)[1],) * 2)")
    live.run("soft, hard = resource.getrlimit(6); resource.setrlimit(6, (1, hard))")
    live.run("resource.setrlimit(6, (soft, hard))")
    frozen = live.freeze()
    pid = frozen.facts["frozen_pid"]
    live.run(f"old = resource.prlimit({pid}, 6, (1, hard))")
    with pytest.raises(OSError) as failed:
        frozen.wake()
    assert failed.value.errno == 11
    live.run(f"resource.prlimit({pid}, 6, old)")
    live.kill()
    assert frozen.wake().value("counts()")


def test_supervisor_that_leaves_does_not_stop_a_wake(world: World) -> None:
    live = world.start(SETUP)
    frozen = live.freeze()
    live.kill()
    link, out, err, passed = world.channels()
    with frozen.connect() as connection:
        request = tt.Request(ctypes.sizeof(tt.Request), tt.WAKE)
        socket.send_fds(connection, [bytes(request)], list(passed))
    for fd in (*passed, out, err):
        os.close(fd)
    link.settimeout(60)
    assert b"result" in link.recv(1 << 20)
    link.close()
    assert frozen.ask(tt.PING).error == 0
