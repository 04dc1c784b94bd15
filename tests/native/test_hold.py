"""A process that is held while others are mounted over what it has open: struct tt_held."""

from __future__ import annotations

import contextlib
import os
import pathlib
import platform
import signal
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import native_target as tt
import pytest
from native_build import need
from native_harness import Process, World, until

SETUP = """
import ctypes, errno, fcntl, os, resource, select, stat, struct, subprocess, sys, time
states = ctypes.CDLL(os.environ["TT_STATES"])
states.state_ticks.restype = ctypes.c_uint64
for slot, kind in enumerate((0, 1, 2)):  # SPIN, MALLOC, NANOSLEEP
    assert states.state_start(slot, kind, -1) == 0
def ticks():
    return [states.state_ticks(slot) for slot in range(3)]
def all_move():
    before, until = ticks(), time.monotonic() + 60
    while any(a == b for a, b in zip(before, ticks())) and time.monotonic() < until:
        time.sleep(.005)
    return all(a != b for a, b in zip(before, ticks()))
def flags(fd):
    return [fcntl.fcntl(fd, fcntl.F_GETFL), fcntl.fcntl(fd, fcntl.F_GETFD)]
def mount_of(fd):
    lines = open(f"/proc/self/fdinfo/{fd}").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("mnt_id:"))
def here():
    fd = os.open(".", os.O_PATH); id = mount_of(fd); os.close(fd); return id
def listing():
    folder = "/proc/self/fd/"
    return [int(n) for n in os.listdir(folder) if os.path.lexists(folder + n)]
PROBE = '''
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB) if sys.argv[2] == "posix" else fcntl.flock(
        fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("free")
except BlockingIOError:
    print("locked")
'''
def probe(name, kind):
    return subprocess.run([sys.executable, "-c", PROBE, name, kind],
        capture_output=True, text=True).stdout.strip()
def locks():
    return [probe("posix", "posix"), probe("flock", "flock"), probe("ofd", "posix")]
def take_locks():
    global posix, flock, ofd
    posix, flock, ofd = (os.open(n, os.O_RDWR) for n in ("posix", "flock", "ofd"))
    fcntl.lockf(posix, fcntl.LOCK_EX, 10, 5); fcntl.flock(flock, fcntl.LOCK_EX)
    fcntl.fcntl(ofd, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
"""


LEAVE = b"\x01"  # TT_LEAVE


def switched(*mount_ids: int) -> bytes:
    return struct.pack(f"II{len(mount_ids)}i", 8, len(mount_ids), *mount_ids)


def hear_held(init: socket.socket) -> int:
    """Take in tt_held; the pid of who sent it, as seen from here."""
    data, control, _, _ = init.recvmsg(64, 64)
    held = tt.Held.from_buffer_copy(data)
    assert held.size == len(data) == 8 and held.frozen_pid >= 0
    return int(struct.unpack("3i", control[0][2])[0])


def activity(pid: int) -> dict[str, tuple[str, ...]]:
    """For each thread: state, time used, switches."""
    found = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        stat = (task / "stat").read_text().rpartition(")")[2].split()
        status = (task / "status").read_text().splitlines()
        switches = [line for line in status if "ctxt_switches" in line]
        found[task.name] = (stat[0], stat[11], stat[12], *switches)
    return found


def assert_stopped(pid: int) -> None:
    """No thread of the process runs."""
    # the one that talks to us is on its way to wait
    assert until(lambda: {facts[0] for facts in activity(pid).values()} == {"S"})
    before = activity(pid)
    assert len(before) == 4
    time.sleep(0.1)
    assert activity(pid) == before


def switch(*mount_ids: int, change: Callable[[], object] = lambda: 0) -> Any:
    """Plays init: change is done while the process is stopped, then the ids are told. What it
    reopened is in ``.reopened`` of the function."""

    def init(link: socket.socket) -> None:
        pid = hear_held(link)
        assert_stopped(pid)
        change()
        link.send(switched(*mount_ids))
        if mount_ids:
            reopened = tt.Reopened.from_buffer_copy(link.recv(64))
            assert reopened.size == 12
            init.reopened = [reopened.reopened, reopened.failed]  # type: ignore[attr-defined]
            assert_stopped(pid)
            link.send(b"go")

    return init


def folder(world: World, name: str, word: str) -> pathlib.Path:
    """A folder of files that tell where they are from."""
    made = world.folder / name
    made.mkdir()
    made.chmod(0o777)
    for file in ("data", "log", "posix", "flock", "ofd", "kept"):
        (made / file).write_text(f"{word} {file} 0123456789\n")
        (made / file).chmod(0o666)
    (made / word).mkdir()
    (made / "link").symlink_to(word)
    give(world, made)
    return made


def give(world: World, path: pathlib.Path) -> None:
    """Let it belong to the user of the world."""
    if world.kind.startswith("as-"):
        uid = int(world.kind[3:].split(":")[0])
        for each in (path, *path.iterdir()):
            os.chown(each, uid, uid, follow_symlinks=False)


def mount_own(world: World, path: pathlib.Path) -> None:
    """Make the folder a mount."""
    assert world.mount(str(path), str(path)) == 0


def environment(process_report: list[list[str]]) -> list[list[str]]:
    return [line[1:] for line in process_report if line[0] == "environment"]


def start(world: World, setup: str) -> Process:
    return world.start(SETUP + setup)


def test_everything_is_opened_again_through_the_new_mount(mounting_world: World) -> None:
    world = mounting_world
    old, new = folder(world, "env", "old"), folder(world, "other", "new")
    mount_own(world, old)
    live = start(
        world,
        "outside = os.open('outside', os.O_RDWR | os.O_CREAT)\n"
        "os.chdir('env')\n"
        "f = os.open('data', os.O_RDONLY | os.O_NOATIME); os.read(f, 4); f2 = os.dup(f)\n"
        "alone = os.open('data', os.O_RDONLY)\n"
        "a = os.open('log', os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)\n"
        "os.dup2(a, 90, inheritable=True); os.lseek(a, 2, 0)\n"
        "d = os.open('.', os.O_RDONLY | os.O_DIRECTORY); path = os.open('data', os.O_PATH)\n"
        "link = os.open('link', os.O_PATH | os.O_NOFOLLOW)\n"
        "for n in ('fifo', 'half'): os.mkfifo(n); os.mkfifo('../other/' + n)\n"
        "q = os.open('fifo', os.O_RDWR | os.O_NONBLOCK); os.write(q, b'queued')\n"
        "h = os.open('half', os.O_RDONLY | os.O_NONBLOCK)\n"
        "e = select.epoll(); e.register(q, select.EPOLLIN)\n"
        "t = os.open('removed', os.O_RDWR | os.O_CREAT); os.write(t, b'no name')\n"
        "os.unlink('removed')\n"
        "os.mkdir('emptied'); x = os.open('emptied', os.O_PATH); os.rmdir('emptied')\n"
        "os.mkfifo('../other/type'); open('type', 'w').close(); y = os.open('type', os.O_RDONLY)\n"
        "open('absent', 'w').close(); z = os.open('absent', os.O_RDONLY)\n"
        "take_locks()\n"
        "moved = [f, f2, alone, a, 90, d, path, link, q, posix, flock, ofd]\n"
        "stay = [h, t, x, y, z]\n"
        "before = [flags(x) for x in moved + stay]; numbers = listing(); limits = "
        "resource.getrlimit(7)\n",
    )
    mount_id = live.value("here()")
    assert live.value("{mount_of(x) for x in moved + stay} == {here()} and mount_of(outside)")
    init = switch(999_999, mount_id, change=lambda: world.mount(str(new), str(old)))
    frozen = live.freeze(init)
    assert frozen.made["result"] == 0
    assert frozen.facts["pause_ns"] > frozen.facts["hold_ns"] > 200_000_000  # two looks at threads
    assert init.reopened == [11, 5]  # f, alone, a, d, path, link, q, three locks, the directory
    names = live.value("[f'fd {x}' for x in stay]")
    lines = environment(frozen.report)
    assert sorted(line[0] for line in lines) == sorted(names)
    assert all("stays on its old mount" in line[1] for line in lines)
    text = dict(lines)
    assert "another process" in text[names[0]] and "removed" in text[names[1]]
    assert "deleted" in text[names[2]] and "another type" in text[names[3]]
    assert "absent" in text[names[4]] and "not there" in text[names[4]]

    assert live.value("all_move()")
    assert live.value("[flags(x) for x in moved + stay] == before and listing() == numbers")
    assert live.value("resource.getrlimit(7) == limits")
    assert live.value("{mount_of(x) for x in moved} == {here()}") and live.value(
        f"here() != {mount_id} and {{mount_of(x) for x in stay}} == {{{mount_id}}}"
    )
    assert live.value("[sorted(os.listdir(x)) == sorted(os.listdir('../other')) for x in ('.', d)]")
    assert live.value("os.path.isdir('new') and not os.path.exists('old')")
    assert live.value(
        "[os.read(f, 4).decode(), os.lseek(f2, 0, 1), os.lseek(alone, 0, 1),"
        " os.readlink('', dir_fd=link)]"
    ) == ["data", 8, 0, "new"]
    assert live.value("[os.lseek(a, 0, 1), os.write(a, b'!'), os.lseek(90, 0, 1)]") == [2, 1, 20]
    assert (new / "log").read_text().endswith("\n!") and "!" not in (old / "log").read_text()
    assert live.value("[len(e.poll(0)), os.read(q, 9).decode(), e.poll(0)]") == [1, "queued", []]
    assert live.value("[os.write(q, b'1'), len(e.poll(0)), os.read(q, 9).decode()]") == [1, 1, "1"]
    assert live.value("[os.pread(t, 9, 0).decode(), os.fstat(t).st_nlink]") == ["no name", 0]
    assert live.value("locks()") == ["locked"] * 3
    live.run("os.close(posix); os.close(flock); os.close(ofd)")
    assert live.value("locks()") == ["free"] * 3

    live.kill()
    for word, length in (("new", 20), ("old", 19)):  # the mounts as they are at the wake count
        woken = frozen.wake()
        assert woken.value("all_move() and listing() == numbers"), woken.woken["report"]
        assert woken.value(f"[os.path.isdir({word!r}), os.lseek(90, 0, 1), locks()]") == [
            True, 2, ["locked"] * 3,
        ]  # fmt: skip
        assert woken.value("[os.read(f2, 4).decode(), os.lseek(f, 0, 1)]") == ["data", 8]
        assert woken.value("os.pread(alone, 3, 0).decode()") == word
        assert woken.value("os.fstat(a).st_size") == length
        woken.kill()
        if word == "new":
            world.unmount(str(old))


def test_locks_when_the_new_mount_has_the_same_files(mounting_world: World) -> None:
    """Old and new description are of one file: what the old one holds must be gone first."""
    env = folder(mounting_world, "env", "old")
    mount_own(mounting_world, env)
    live = start(
        mounting_world,
        "os.chdir('env'); take_locks(); e = os.open('../env/data', os.O_RDONLY)\n"
        "other = os.open('kept', os.O_RDWR)\n",
    )
    live.run("os.chdir('..')")
    init = switch(live.value("mount_of(e)"), change=lambda: mount_own(mounting_world, env))
    frozen = live.freeze(init)
    assert init.reopened == [5, 0] and frozen.report == []
    live.run("os.chdir('env')")
    assert live.value("locks()") == ["locked"] * 3
    assert live.value("{mount_of(x) for x in (e, posix, flock, ofd)} == {here()}")


def test_lock_that_another_has_by_then_is_named(world: World) -> None:
    old, new = folder(world, "env", "old"), folder(world, "other", "new")
    mount_own(world, old)
    live = start(world, "os.chdir('env'); take_locks()")
    other = world.start(
        "import fcntl, os\nl = os.open('other/flock', os.O_RDWR)\nfcntl.flock(l, 2)"
    )
    assert other.value("l")  # it has begun, and has the lock
    init = switch(live.value("here()"), change=lambda: world.mount(str(new), str(old)))
    frozen = live.freeze(init)
    assert init.reopened == [4, 0] and [line[0] for line in frozen.report] == ["lock"]
    other.kill()
    assert live.value("locks()") == ["locked", "free", "locked"]


def test_lowered_limit_of_descriptors(world: World) -> None:
    old, new = folder(world, "env", "old"), folder(world, "other", "new")
    mount_own(world, old)
    live = start(
        world,
        "os.chdir('env'); f = os.open('data', os.O_RDONLY); os.dup2(f, 90)\n"
        "hard = resource.getrlimit(7)[1]; resource.setrlimit(7, (50, hard))\n",
    )
    init = switch(live.value("here()"), change=lambda: world.mount(str(new), str(old)))
    assert live.freeze(init).report == [] and init.reopened == [2, 0]
    assert live.value("[os.pread(x, 3, 0).decode() for x in (f, 90)]") == ["new"] * 2
    assert live.value("resource.getrlimit(7) == (50, hard)")
    # a limit that cannot be raised: all or none of the numbers
    live.run("resource.setrlimit(7, (50, 50))")
    init = switch(live.value("here()"), change=lambda: mount_own(world, old))
    frozen = live.freeze(init)
    assert init.reopened == [1, 1] and [line[0] for line in environment(frozen.report)] != []
    assert live.value("mount_of(f) == mount_of(90) != here()")


def test_overlay(mounting_world: World) -> None:
    """As the sandbox does it: the upper layer becomes one that nobody writes to any more."""
    world = mounting_world
    base = folder(world, "base", "base")
    merged, layers = world.folder / "env", [world.folder / f"upper{i}" for i in range(3)]
    for path in (merged, *layers, *(world.folder / f"work{i}" for i in range(3))):
        path.mkdir()
        give(world, path)

    def cover(upper: int, *lower: int) -> int:
        data = f"upperdir={layers[upper]},workdir={world.folder}/work{upper},lowerdir="
        data += ":".join(str(path) for path in [*(layers[i] for i in lower), base])
        data += ",userxattr" if "user" in world.kind else ""
        return world.mount("none", str(merged), "overlay", data)

    if cover(0):
        need("overlay mounts")
    live = start(
        world,
        "os.chdir('env'); f = open('log', 'a'); f.write('one\\n'); f.flush()\n"
        "d = os.open('data', os.O_RDWR); os.read(d, 5)\n",
    )
    init = switch(live.value("here()"), change=lambda: cover(1, 0))
    frozen = live.freeze(init)
    assert frozen.report == [] and init.reopened == [3, 0]
    live.run("f.write('two\\n'); f.flush(); os.write(d, b'DATA'); open('more', 'w').close()")
    assert live.value("sorted(os.listdir('.'))") == sorted([*os.listdir(base), "more"])
    assert (layers[0] / "log").read_text() == (base / "log").read_text() + "one\n"
    assert (layers[1] / "log").read_text() == (base / "log").read_text() + "one\ntwo\n"
    assert (layers[1] / "data").read_text() == "base DATA 0123456789\n"
    assert (layers[0] / "data").read_text() == "base data 0123456789\n"
    assert not (layers[0] / "more").exists()
    live.kill()
    world.unmount(str(merged))
    world.unmount(str(merged))
    assert cover(2, 0) == 0
    woken = frozen.wake()
    assert woken.woken["report"] == []
    assert woken.value("[open('log').read()[-4:], os.read(d, 4).decode()]") == ["one\n", "data"]
    woken.run("f.write('three\\n'); f.flush()")
    assert (layers[2] / "log").read_text().endswith("one\nthree\n")


def test_nothing_switched(any_world: World) -> None:
    live = start(any_world, "before = listing(); f = os.open('x', os.O_RDWR | os.O_CREAT)\n")
    init = switch()
    frozen = live.freeze(init)
    assert frozen.made["result"] == 0 and frozen.report == []
    assert frozen.facts["pause_ns"] > frozen.facts["hold_ns"] > 100_000_000
    assert live.value("all_move() and listing() == [*before, f]")
    live.kill()
    woken = frozen.wake()
    assert woken.woken["facts"]["hold_ns"] == 0
    assert woken.value("all_move() and listing() == [*before, f]")  # without the socket
    again = woken.freeze(switch())
    assert again.facts["frozen_fds"] == frozen.facts["frozen_fds"]


def test_no_mount_of_ours(world: World) -> None:
    live = start(world, "f = os.open('x', os.O_RDWR | os.O_CREAT)\n")
    init = switch(*range(1_000_000, 1_000_000 + 4096))
    frozen = live.freeze(init)
    assert init.reopened == [0, 0] and frozen.report == [] and live.value("all_move()")


def close_at_once(link: socket.socket) -> None:
    link.close()


def close_when_held(link: socket.socket) -> None:
    hear_held(link)
    link.close()


def close_when_reopened(link: socket.socket) -> None:
    hear_held(link)
    link.send(switched(1_000_000))
    link.recv(64)
    link.close()


def leave_unanswered(link: socket.socket) -> None:
    hear_held(link)
    assert link.recv(64) == b""  # it says when it is not held any more


def leave_unfinished(link: socket.socket) -> None:
    link.send(switched(1_000_000))  # already, so that it is in time however slow we are
    hear_held(link)
    assert len(link.recv(64)) == 12 and link.recv(64) == b""


def say(packet: bytes) -> Callable[[socket.socket], None]:
    def init(link: socket.socket) -> None:
        hear_held(link)
        link.send(packet)
        assert link.recv(64) == b""

    return init


@pytest.mark.parametrize(
    ("init", "words"),
    [
        (close_at_once, "the other end is closed"),
        (close_when_held, "the other end is closed"),
        (close_when_reopened, "the other end is closed"),
        (leave_unanswered, "no answer in time"),
        (leave_unfinished, "no answer in time"),
        *((say(packet), "not understood") for packet in (
            b"x", switched(1)[:-1], switched(1, 2)[:-4], switched(1) + b"more",
            struct.pack("II", 12, 0), struct.pack("II", 8, 1 << 30), switched(*range(4097)),
        )),
    ],
)  # fmt: skip
def test_goes_on_when_it_is_let_down(
    world: World, init: Callable[[socket.socket], None], words: str
) -> None:
    live = start(world, "before = listing()\n")
    frozen = live.freeze(init, hold_timeout_ms=300 if "in time" in words else 60_000)
    assert frozen.made["result"] == 0
    [[subject, detail]] = environment(frozen.report)
    assert subject == "hold" and words in detail
    assert frozen.facts["hold_ns"] < 20e9
    assert "in time" not in words or frozen.facts["hold_ns"] >= 300e6
    assert live.value("all_move() and listing() == before")
    live.kill()
    assert frozen.wake().value("all_move()")


def test_moves_when_it_is_told(world: World) -> None:
    live = start(world, "before = listing()\n")

    def supervisor(link: socket.socket) -> None:
        link.settimeout(0.3)
        with pytest.raises(TimeoutError):
            link.recv(64)  # it says nothing
        link.settimeout(60)
        link.send(LEAVE)
        assert link.recv(64) == b""

    frozen = live.freeze(supervisor, flags=tt.MOVE)
    frozen.ask(tt.PING)
    live.kill()
    assert frozen.wake().value("all_move() and listing() == before")


@pytest.mark.parametrize("said", [b"", b"\0", b"\2", b"\1\1", None], ids=repr)
def test_stays_when_it_is_not_told(world: World, said: bytes | None) -> None:
    live = start(world, "before = listing()\n")

    def supervisor(link: socket.socket) -> None:
        if said is None:
            assert link.recv(64) == b"", "it has gone on by itself"
        elif said:
            link.send(said)

    frozen = live.freeze(supervisor, flags=tt.MOVE, hold_timeout_ms=300)
    answer = live.reply()
    assert answer["result"] == -125
    assert [line[:2] for line in answer["report"]] == [["refused", "clone"]]
    assert live.value("all_move() and listing() == before")
    with pytest.raises(OSError):
        frozen.ask(tt.PING)
    again = live.freeze(clone=True)
    live.kill()
    assert again.wake().value("all_move() and listing() == before")


def test_stays_when_it_is_told_too_late(world: World) -> None:
    """Stopped by a signal meanwhile: whoever waited for it may have given it up by then."""
    live = start(world, "before = listing()\n")

    def supervisor(link: socket.socket) -> None:
        time.sleep(0.5)  # it is ready by now
        world.signal(live.pid, signal.SIGSTOP)
        link.send(LEAVE)
        time.sleep(1.5)
        world.signal(live.pid, signal.SIGCONT)

    live.freeze(supervisor, flags=tt.MOVE, hold_timeout_ms=1500)
    assert live.reply()["result"] == -125
    assert live.value("all_move() and listing() == before")


def test_wrong_descriptor_is_refused(world: World) -> None:
    live = start(world, "null = os.open('/dev/null', os.O_RDWR)\n")
    assert live.freeze(hold_fd=999).made["result"] == -22
    frozen = live.freeze(hold_fd=live.value("null"))
    assert frozen.made["result"] == 0 and environment(frozen.report)[0][0] == "hold"
    assert live.value("all_move()")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (44, "hold"),  # sendto
        (45, "hold"),  # recvfrom
        (271, "hold"),  # ppoll
        (292, "stays on its old mount"),  # dup3
        (80, "stays on its old mount"),  # chdir
    ],
)
def test_system_call_that_fails(world: World, number: int, words: str) -> None:
    """x86-64 numbers."""
    if platform.machine() != "x86_64":
        need("an x86-64 machine")
    old, new = folder(world, "env", "old"), folder(world, "other", "new")
    mount_own(world, old)
    live = start(
        world, "os.chdir('env'); f = os.open('data', os.O_RDONLY); os.read(f, 1); take_locks()\n"
    )
    live.run("numbers = listing()")
    mount_id = live.value("here()")
    live.run(f"assert states.state_fail({number}, errno.ENOMEM) == 0")

    def init(link: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it may have hung up
            if link.recv(64):
                assert world.mount(str(new), str(old)) == 0
                link.send(switched(mount_id))
                link.recv(64)
                link.send(b"go")

    frozen = live.freeze(init)
    assert frozen.made["result"] == 0
    lines = environment(frozen.report)
    assert lines and all(words in " ".join(line) for line in lines)
    assert live.value("all_move() and listing() == numbers")
    assert live.value("os.pread(f, 3, 0).decode()") == ("new" if number == 80 else "old")
    assert live.value("os.lseek(f, 0, 1)") == 1
