"""What belongs to the process: timers, locks, directory, umask, signals, scores."""

from __future__ import annotations

import time

from native_harness import World

SETUP = """
import ctypes, errno, fcntl, os, resource, select, signal, socket, struct, subprocess, sys, time
def wait_until(condition, limit=60.0):
    until = time.monotonic() + limit
    while not condition() and time.monotonic() < until:
        time.sleep(.01)
    return bool(condition())
"""


def test_process_19_interval_timers(any_world: World) -> None:
    live = any_world.start(
        SETUP + "hits = []\n"
        "signal.signal(signal.SIGALRM, lambda *a: hits.append(1))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)\n"
        "signal.setitimer(signal.ITIMER_PROF, 1000, 50)\n"
        "signal.setitimer(signal.ITIMER_VIRTUAL, 900)\n"
    )
    frozen = live.freeze()
    live.run("for t in range(3): signal.setitimer(t, 0)")
    hits = live.value("len(hits)")
    live.kill()
    for _ in range(2):
        began = time.monotonic()
        woken = frozen.wake()
        seen = woken.value("len(hits)")
        assert seen <= hits + 1 + (time.monotonic() - began) / 0.2
        assert woken.value(f"wait_until(lambda: len(hits) > {seen + 1})")
        assert woken.value("signal.getitimer(signal.ITIMER_REAL)[1]") == 0.2
        assert woken.value(
            "[990 < signal.getitimer(signal.ITIMER_PROF)[0] <= 1001,"
            " signal.getitimer(signal.ITIMER_PROF)[1],"
            " 890 < signal.getitimer(signal.ITIMER_VIRTUAL)[0] <= 901]"
        ) == [True, 50.0, True]
        woken.kill()


def test_an_interval_timer_whose_signal_waits(any_world: World) -> None:
    """The kernel stops it until the signal is taken, which a freeze may well come before."""
    live = any_world.start(
        SETUP + "hits = []\n"
        "signal.signal(signal.SIGALRM, lambda *a: hits.append(1))\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)\n"
        "wait_until(lambda: signal.sigpending())\n"
    )
    assert live.value("signal.getitimer(signal.ITIMER_REAL)") == [0, 0.02]
    frozen = live.freeze()
    go_on = "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])"
    live.run(go_on)
    assert live.value("wait_until(lambda: len(hits) > 2)")
    live.kill()
    woken = frozen.wake()
    woken.run(go_on)
    assert woken.value("wait_until(lambda: len(hits) > 2)")
    assert woken.value("signal.getitimer(signal.ITIMER_REAL)[1]") == 0.02


def test_posix_timers(any_world: World) -> None:
    live = any_world.start(
        SETUP + "states = ctypes.CDLL(os.environ['TT_STATES']); states.state_timers()\n"
        "def fire(i):\n  n = states.state_fired(i)\n"
        "  return wait_until(lambda: states.state_fired(i) > n)\n"
    )
    assert live.value("[fire(0), fire(1)]") == [True, True]
    frozen = live.freeze()
    assert frozen.report == []
    assert live.value("[fire(0), fire(1), states.state_stop_timers()]") == [True, True, 0]
    live.kill()
    for _ in range(2):
        woken = frozen.wake()
        assert woken.woken["report"] == []
        assert woken.value("[fire(0), fire(1), states.state_stop_timers()]") == [True, True, 0]
        woken.kill()


PROBE = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
try:
    {"posix": lambda: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 5),
     "flock": lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)}[sys.argv[2]]()
    print("free")
except BlockingIOError:
    print("locked")
"""


def test_locks_are_held_again_and_not_while_frozen(any_world: World) -> None:
    (any_world.folder / "probe.py").write_text(PROBE)
    live = any_world.start(
        SETUP + "for n in 'pfo': open(n, 'w').close()\n"
        "p = os.open('p', os.O_RDWR); fcntl.lockf(p, fcntl.LOCK_EX, 10, 5)\n"
        "f = os.open('f', os.O_RDWR); fcntl.flock(f, fcntl.LOCK_SH)\n"
        "o = os.open('o', os.O_RDWR)\n"
        "fcntl.fcntl(o, 37, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0))\n"
        "def probe(name, kind):\n"
        "  return subprocess.run([sys.executable, 'probe.py', name, kind],"
        " capture_output=True, text=True).stdout.strip()\n"
        "def all():\n  return [probe('p', 'posix'), probe('f', 'flock'), probe('o', 'posix')]\n"
    )
    assert live.value("all()") == ["locked"] * 3
    frozen = live.freeze()
    live.run("os.close(p); os.close(f); os.close(o)")
    assert live.value("all()") == ["free"] * 3
    live.kill()
    for _ in range(2):
        woken = frozen.wake()
        assert woken.value("all()") == ["locked"] * 3
        woken.kill()


def test_lock_held_by_another_is_named(world: World) -> None:
    live = world.start(
        SETUP
        + "open('p', 'w').close(); p = os.open('p', os.O_RDWR); fcntl.lockf(p, fcntl.LOCK_EX)\n"
    )
    frozen = live.freeze()
    woken = frozen.wake(1)  # beside the live one
    assert [line[0] for line in woken.woken["report"]] == ["lock"]


def test_directory_umask_session_and_limits(any_world: World) -> None:
    live = any_world.start(
        SETUP + "os.mkdir('here'); os.chdir('here'); os.umask(0o137)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300)); os.environ['A'] = 'b'\n"
        "os.setpriority(os.PRIO_PROCESS, 0, 5)\n"
        "open('/proc/self/oom_score_adj', 'w').write('77')\n"
        "open('/proc/self/comm', 'w').write('my kernel')\n"
        "ctypes.CDLL(None).prctl(36, 1)\n"
        "def facts():\n"
        "  m = os.umask(0); os.umask(m); r = ctypes.c_int()\n"
        "  ctypes.CDLL(None).prctl(37, ctypes.byref(r))\n"
        "  return [os.getcwd(), m, resource.getrlimit(resource.RLIMIT_NOFILE), os.environ['A'],\n"
        "    os.getpriority(os.PRIO_PROCESS, 0), open('/proc/self/oom_score_adj').read(),\n"
        "    open('/proc/self/comm').read(), r.value, os.getuid()]\n"
    )
    facts = live.value("facts()")
    frozen = live.freeze()
    pid = frozen.facts["frozen_pid"]
    frozen.ask(1)
    assert live.value(f"open('/proc/{pid}/oom_score_adj').read()") == "1000\n"
    assert live.value(f"open('/proc/{pid}/comm').read()") == "tt-frozen\n"
    assert live.value("facts()") == facts
    live.kill()
    woken = frozen.wake()
    assert woken.value("facts()") == facts
    assert woken.value("os.getsid(0) == os.getpid()")


def test_directory_that_is_gone_is_named(world: World) -> None:
    live = world.start(SETUP + "os.mkdir('here'); os.chdir('here')\n")
    frozen = live.freeze()
    live.run("os.rmdir('../here')")
    live.kill()
    woken = frozen.wake()
    assert [line[0] for line in woken.woken["report"]] == ["cwd"]
    assert woken.value("os.getcwd()") == "/"


def test_signals(any_world: World) -> None:
    live = any_world.start(
        SETUP + "hits = []\n"
        "signal.signal(signal.SIGUSR1, lambda *a: hits.append('usr1'))\n"
        "signal.signal(signal.SIGUSR2, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGCHLD, lambda *a: hits.append('chld'))\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGINT])\n"
        "os.kill(os.getpid(), signal.SIGUSR1); os.kill(os.getpid(), signal.SIGINT)\n"
        "mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])\n"
    )
    frozen = live.freeze()
    assert live.value("signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask")
    assert live.value("hits") == []
    live.run("signal.signal(signal.SIGINT, signal.SIG_IGN)")
    live.run("signal.pthread_sigmask(signal.SIG_UNBLOCK, mask)")
    assert live.value("hits") == ["usr1"]
    live.kill()
    woken = frozen.wake()
    assert woken.value("signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask")
    # an interrupt that was on its way to the live process is not sent to each woken one
    assert woken.value("sorted(signal.sigpending())") == [10]
    woken.run("signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])")
    assert woken.value("hits") == ["usr1"]
    assert woken.value("signal.getsignal(signal.SIGUSR2)") == 1


def test_no_child_and_no_signal_appear_in_live(any_world: World) -> None:
    live = any_world.start(
        SETUP + "hits = []\nsignal.signal(signal.SIGCHLD, lambda *a: hits.append(1))\n"
        "def children():\n"
        "  try: return os.waitpid(-1, os.WNOHANG)\n"
        "  except ChildProcessError: return 'none'\n"
    )
    frozen = live.freeze()
    assert live.value("children()") == "none"
    any_world.kill(frozen.facts["frozen_pid"])
    assert live.value("[children(), hits]") == ["none", []]


def test_child_that_has_ended_is_named(world: World) -> None:
    """Its exit status cannot be had in a woken process."""
    live = world.start(SETUP + "p = subprocess.Popen(['/bin/true'])\n")
    live.run("os.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOWAIT)")
    frozen = live.freeze()
    assert [line[0] for line in frozen.report] == ["child"]
    assert live.value("p.wait()") == 0
