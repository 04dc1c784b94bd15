"""Threads: each goes on in the live process and in every woken copy, wherever it was stopped."""

from __future__ import annotations

import native_target as tt
import pytest
from native_harness import Process, World

from tests.exhaustive import times

SETUP = """
import ctypes, os, threading, time, select, socket
states = ctypes.CDLL(os.environ["TT_STATES"])
states.state_ticks.restype = states.state_errors.restype = ctypes.c_uint64
KINDS = ("SPIN MALLOC NANOSLEEP SEM COND READ EPOLL FLOAT STACK BIRTH VFORK MUTEX BLOCKED "
         "ALTSTACK SETXID").split()
slots = 0
def start(kind, fd=-1):
    global slots
    assert states.state_start(slots, KINDS.index(kind), fd) == 0
    slots += 1
def ticks():
    return [states.state_ticks(i) for i in range(slots)]
def all_move(skip=(), limit=60.0):
    "Wait until every thread has counted on; the slots of those that did not."
    before, until = ticks(), time.monotonic() + limit
    while time.monotonic() < until:
        still = [i for i, (a, b) in enumerate(zip(before, ticks())) if a == b and i not in skip]
        if not still:
            return []
        time.sleep(.005)
    return still
def ticked(count, limit=60.0):
    until = time.monotonic() + limit
    while sum(ticks()) < count and time.monotonic() < until:
        time.sleep(.005)
    return sum(ticks())
def where():
    "What each thread waits for, to read when a test fails."
    def read(tid, name):
        try:
            return open(f"/proc/self/task/{tid}/{name}").read().strip()
        except OSError as e:
            return repr(e)
    names = ("stat", "wchan", "syscall")
    return {tid: [read(tid, name) for name in names] for tid in tids()}
def tids():
    return sorted(map(int, os.listdir("/proc/self/task")))
"""


def check(process: Process) -> None:
    assert process.value("all_move()") == [], process.value("[ticks(), where()]")
    assert process.value("states.state_errors()") == 0


@pytest.mark.parametrize(
    "kinds",
    [
        ["NANOSLEEP", "SEM", "SEM", "COND", "COND", "EPOLL"],
        ["SPIN", "MALLOC", "MALLOC", "FLOAT"],
        ["STACK", "MUTEX", "MUTEX", "ALTSTACK"],
        ["BIRTH", "VFORK"],
        ["SETXID", "SETXID", "NANOSLEEP", "BIRTH"],
    ],
    ids="-".join,
)
def test_threads_go_on(any_world: World, kinds: list[str]) -> None:
    live = any_world.start(SETUP + "epoll = select.epoll()\n")
    for kind in kinds:
        live.run(f"start({kind!r}, epoll.fileno())")
    check(live)
    frozen = live.freeze()
    assert frozen.made["result"] == 0
    check(live)
    live.kill()
    for k in (1, 2):
        woken = frozen.wake()
        assert woken.woken["result"] == k
        check(woken)
        again = woken.freeze()
        check(woken)
        woken.kill()
        deeper = again.wake()
        check(deeper)
        deeper.kill()
        again.quit()


def test_ids_are_the_old_ones(any_world: World) -> None:
    live = any_world.start(SETUP)
    for _ in range(3):
        live.run("start('NANOSLEEP')")
    live.run("t = threading.Thread(target=time.sleep, args=(1e6,), daemon=True); t.start()")
    tids = live.value("tids()")
    frozen = live.freeze()
    assert frozen.facts["threads"] == 4
    live.kill()
    woken = frozen.wake()
    if any_world.kind.endswith("plain"):
        assert woken.woken["facts"]["woken_ids_kept"] == 0
        assert len(woken.value("tids()")) == len(tids)
    else:
        assert woken.woken["facts"]["woken_ids_kept"] == 1
        assert woken.value("tids()") == tids
        assert woken.value("t.native_id in tids()")


def test_new_ids_on_request(world: World) -> None:
    live = world.start(SETUP + "start('NANOSLEEP')")
    tids = live.value("tids()")
    frozen = live.freeze(flags=tt.NEW_IDS)
    woken = frozen.wake()  # beside the live one: both run
    assert woken.woken["facts"]["woken_ids_kept"] == 0
    assert not set(woken.value("tids()")) & set(tids)
    check(woken)
    check(live)


def test_taken_id_is_refused_or_replaced(world: World) -> None:
    live = world.start(SETUP + "start('NANOSLEEP')")
    frozen = live.freeze()
    with pytest.raises(OSError) as failed:
        frozen.wake(tt.WAKE_KEEP_IDS_OR_FAIL)
    assert failed.value.errno == 17
    woken = frozen.wake()
    assert woken.woken["facts"]["woken_ids_kept"] == 0
    check(woken)
    woken.kill()
    live.kill()
    assert frozen.wake(tt.WAKE_KEEP_IDS_OR_FAIL).woken["facts"]["woken_ids_kept"] == 1


def test_two_hundred_threads(world: World) -> None:
    live = world.start(SETUP)
    live.run("for _ in range(200): start('NANOSLEEP')")
    frozen = live.freeze()
    assert frozen.facts["threads"] == 200
    live.kill()
    woken = frozen.wake()
    check(woken)
    assert woken.value("len(tids())") == 201


def test_more_than_a_thousand_threads(world: World) -> None:
    live = world.start(SETUP + "r, w = os.pipe()\n")
    live.run("for _ in range(1200): start('READ', r)")
    frozen = live.freeze(stop_timeout_ms=60000)
    assert frozen.made["result"] == 0 and frozen.facts["threads"] == 1200
    live.kill()
    assert frozen.wake().value("len(tids())") == 1201


def test_blocked_reader_reads_in_the_woken_process(world: World) -> None:
    live = world.start(SETUP + "r, w = os.pipe(); start('READ', r)")
    frozen = live.freeze()
    live.run("os.write(w, b'x')")
    assert live.value("ticked(1)") == 1
    live.kill()
    woken = frozen.wake()
    assert woken.value("ticks()") == [0]
    woken.run("os.write(w, b'x')")
    assert woken.value("ticked(1)") == 1


def test_accept_goes_on(world: World) -> None:
    live = world.start(
        SETUP
        + "s = socket.create_server(('127.0.0.1', int(os.environ['TT_PORT']))); got = []\n"
        + "def serve():\n  while True: c, a = s.accept(); got.append(c.recv(9)); c.close()\n"
        + "threading.Thread(target=serve, daemon=True).start()\n"
        + "def visit(text):\n  n = len(got)\n"
        + "  with socket.create_connection(s.getsockname()) as c: c.send(text)\n"
        + "  while len(got) == n: time.sleep(.005)\n  return got[-1].decode()"
    )
    assert live.value("visit(b'live')") == "live"
    frozen = live.freeze()
    assert live.value("visit(b'on')") == "on"
    live.kill()
    for text in ("one", "two"):
        woken = frozen.wake()
        assert woken.value("len(got)") == 1
        assert woken.value(f"visit(b'{text}')") == text
        woken.kill()


def test_join_robust_mutex_and_barrier(world: World) -> None:
    live = world.start(SETUP + "states.state_hold_robust(); states.state_start_joinable()\n")
    live.run("slots = 2; states.state_barrier(0, 1)")
    frozen = live.freeze()
    live.kill()
    for _ in range(2):
        woken = frozen.wake()
        assert woken.value("states.state_release_robust()") == 0
        assert woken.value("states.state_join()") == 77
        check(woken)
        woken.kill()


def test_recursive_mutex_is_unlocked_by_its_holder(any_world: World) -> None:
    live = any_world.start(SETUP + "states.state_hold_recursive()\n")
    frozen = live.freeze()
    assert live.value("states.state_release_recursive()") == 0
    live.kill()
    for _ in range(2):
        woken = frozen.wake()
        assert woken.value("states.state_release_recursive()") == 0
        woken.kill()


def test_what_lies_behind_a_library_is_not_taken_for_its_data(plain_world: World) -> None:
    """Words like those of a locked mutex, as an integer with the value of an id has them: where
    only such words are in the memory behind a library, they stay as they were."""
    live = plain_world.start(
        SETUP
        + "import struct\nstart('SEM')\n"
        + "libc = ctypes.CDLL(None, use_errno=True)\n"
        + "libc.mmap.restype = ctypes.c_void_p\n"
        + "number = ctypes.c_long\n"
        + "libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, number]\n"
        + "maps = [l.split() for l in open('/proc/self/maps')]\n"
        + "ends = {l[0].split('-')[0]: int(l[0].split('-')[1], 16) for l in maps}\n"
        + "NOREPLACE = 0x100000\n"
        + "places = []\n"
        + "for line in maps:\n"
        + "    if '.so' not in line[-1] or line[1] != 'rw-p': continue\n"
        + "    end = int(line[0].split('-')[1], 16)\n"
        + "    end = ends.get('%x' % end, end)  # its zeroed data\n"
        + "    at = libc.mmap(end, 4096, 3, 0x22 | NOREPLACE, -1, 0)\n"
        + "    if at != end: continue\n"
        + "    places.append(at)\n"
        + "    words = struct.pack('5i', 1, 1, os.getpid(), 1, 1) + bytes(4)\n"
        + "    ctypes.memmove(at, words * 170, len(words) * 170)\n"
        + "pid = os.getpid()\n"
        + "def changed():\n"
        + "    owners = [ctypes.c_int.from_address(at + 8).value for at in places]\n"
        + "    return sum(owner != pid for owner in owners)\n"
    )
    assert live.value("len(places)") > 0
    frozen = live.freeze()
    live.kill()
    woken = frozen.wake()
    assert woken.value("os.getpid() == pid") is False
    assert woken.value("changed()") == 0
    woken.kill()


def test_names_affinity_and_priority(world: World) -> None:
    live = world.start(
        SETUP
        + "def run():\n  global tid\n  tid = threading.get_native_id()\n"
        + "  open('/proc/self/task/%d/comm' % tid, 'w').write('my thread')\n"
        + "  os.sched_setaffinity(0, {0}); os.setpriority(os.PRIO_PROCESS, tid, 7)\n"
        + "  ready.set(); time.sleep(1e6)\n"
        + "ready = threading.Event()\n"
        + "threading.Thread(target=run, daemon=True).start(); ready.wait()\n"
        + "def facts():\n  return [open(f'/proc/self/task/{tid}/comm').read(),\n"
        + "    sorted(os.sched_getaffinity(tid)), os.getpriority(os.PRIO_PROCESS, tid)]"
    )
    facts = live.value("facts()")
    assert facts == ["my thread\n", [0], 7]
    frozen = live.freeze()
    live.kill()
    assert frozen.wake().value("facts()") == facts


def test_thread_that_blocks_everything_is_named_and_unharmed(world: World) -> None:
    live = world.start(SETUP + "start('NANOSLEEP'); start('BLOCKED')\n")
    check(live)  # it counts once it has blocked them
    frozen = live.freeze(stop_timeout_ms=200)
    assert frozen.made["result"] == -110
    assert frozen.facts["blocking_tid"] in live.value("tids()")
    assert frozen.facts["blocking_name"]
    assert frozen.report[0][0] == "refused"
    check(live)
    again = live.freeze(stop_timeout_ms=100)
    assert again.made["result"] == -110
    # the signals that were owed arrive now, and are swallowed
    live.run("states.state_unblock()")
    check(live)
    assert live.freeze(stop_timeout_ms=60000).made["result"] == 0
    check(live)


def test_only_the_leader_may_freeze(world: World) -> None:
    live = world.start(SETUP)
    live.run(
        "l = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "t = threading.Thread(target=lambda: globals().update(r=target.freeze(l.fileno(), {})))\n"
        "t.start(); t.join()"
    )
    assert live.value("r") == -22


def test_container_profile_without_clone3_and_kcmp(world: World) -> None:
    live = world.start(SETUP + "assert states.state_container_profile() == 0\n")
    for kind in ("MALLOC", "NANOSLEEP", "COND"):
        live.run(f"start({kind!r})")
    live.run(
        "f = os.open('data', os.O_RDWR | os.O_CREAT); d = os.dup(f)\n"
        "e = os.open('data', os.O_RDWR)\n"
        "v = os.eventfd(4); v2 = os.dup(v); v3 = os.eventfd(4)\n"
    )
    frozen = live.freeze()
    live.kill()
    for flags in (0, tt.WAKE_CONSUME):
        woken = frozen.wake(flags)
        assert woken.woken["facts"]["woken_ids_kept"] == 0
        check(woken)
        # which descriptors share a description is known without kcmp, too
        assert woken.value("[os.lseek(f, 5, 0), os.lseek(d, 0, 1), os.lseek(e, 0, 1)]") == [5, 5, 0]
        assert woken.value("[os.eventfd_read(v2), os.eventfd_read(v3)]") == [4, 4]
        woken.kill()


def test_threads_of_the_kernel_are_no_threads_of_ours(any_world: World) -> None:
    live = any_world.start(SETUP + "start('NANOSLEEP'); ring = states.state_io_uring()\n")
    if live.value("ring") < 0:
        pytest.skip("needs io_uring")
    frozen = live.freeze()
    assert frozen.made["result"] == 0, frozen.made
    assert frozen.facts["threads"] == 1
    assert {line[0] for line in frozen.report} == {"io_uring"}
    check(live)
    live.kill()
    check(frozen.wake())


@pytest.mark.storm
def test_storm_of_threads_frozen_again_and_again(world: World) -> None:
    live = world.start(SETUP)
    for kind in ("BIRTH", "BIRTH", "MALLOC", "NANOSLEEP", "VFORK", "MUTEX", "SETXID"):
        live.run(f"start({kind!r})")
    for i in range(times(200, 100)):
        frozen = live.freeze(stop_timeout_ms=60000)
        assert frozen.made["result"] == 0, frozen.made
        if i % 50 == 49:
            woken = frozen.wake()
            check(woken)
            woken.kill()
        frozen.quit()
    check(live)


def test_scheduling_is_that_of_each_thread_at_each_freeze(any_world: World) -> None:
    """What was noted of a thread that has ended is not taken for that of a later one."""
    live = any_world.start(
        SETUP + "stop = threading.Event(); nice = {}\n"
        "def serve(name, value):\n"
        "  os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), value)\n"
        "  stop.wait()\n"
        "  nice[name] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())\n"
        "first = threading.Thread(target=serve, args=('first', 5)); first.start()\n"
        "while os.getpriority(os.PRIO_PROCESS, first.native_id) != 5: time.sleep(.005)\n"
    )
    before = live.freeze()
    live.run(
        "stop.set(); first.join(); stop.clear()\n"
        "second = threading.Thread(target=serve, args=('second', 0)); second.start()"
    )
    after = live.freeze()
    live.kill()
    for frozen, expected in ((before, {"first": 5}), (after, {"first": 5, "second": 0})):
        woken = frozen.wake()
        assert [line for line in woken.woken["report"] if line[0] == "thread"] == []
        woken.run("stop.set(); [t.join() for t in threading.enumerate() if t.name != 'MainThread']")
        assert woken.value("nice") == expected
        woken.kill()
