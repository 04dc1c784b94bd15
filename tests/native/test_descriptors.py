"""Descriptors: same numbers, flags, offsets and contents, in every woken copy.

Each test sets up a state in a target, has it frozen, lets the live process change it, and compares
what each woken copy sees with what was there at the freeze.
"""

from __future__ import annotations

from typing import Any

import pytest
from native_harness import Frozen, Process, World, until

SETUP = """
import array, ctypes, errno, fcntl, json, os, pty, select, signal, socket, stat, struct, tempfile
import termios, threading, time
PORT = int(os.environ["TT_PORT"])
def flags(fd):
    return [fcntl.fcntl(fd, fcntl.F_GETFL) & ~0o100000, fcntl.fcntl(fd, fcntl.F_GETFD)]
def listing():
    "Numbers of all descriptors, without the one that lists them."
    d = os.open("/proc/self/fd", os.O_RDONLY)
    names = sorted(int(n) for n in os.listdir(d) if int(n) != d); os.close(d); return names
def error_of(call, *arguments):
    try:
        r = call(*arguments)
        return r if isinstance(r, (int, str)) else repr(r)
    except OSError as e:
        return errno.errorcode[e.errno]
"""


def frozen_and_killed(world: World, setup: str, change: str = "") -> tuple[Frozen, Process]:
    """A frozen process; the live one goes on, changes things, and is killed."""
    live = world.start(SETUP + setup)
    frozen = live.freeze()
    assert frozen.made["result"] == 0, frozen.made
    if change:
        live.run(change)
    live.kill()
    return frozen, live


def same_in_two_copies(
    world: World, setup: str, value: str, expected: Any, change: str = ""
) -> Frozen:
    """Woken twice, and frozen and woken again in between: value is as expected each time."""
    frozen, _ = frozen_and_killed(world, setup, change)
    for _ in range(2):
        woken = frozen.wake()
        assert woken.value(value) == expected, woken.woken["report"]
        woken.kill()
    woken = frozen.wake()
    again = woken.freeze()
    woken.kill()
    deeper = again.wake()
    assert deeper.value(value) == expected, deeper.woken["report"]
    return frozen


def test_regular_file(any_world: World) -> None:
    same_in_two_copies(
        any_world,
        "f = os.open('data', os.O_RDWR | os.O_CREAT, 0o600); os.write(f, b'0123456789')\n"
        "os.lseek(f, 3, 0); a = os.open('data', os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)\n"
        "os.set_inheritable(a, True); d = os.dup(f); n = os.dup2(f, 77)\n"
        "before = [flags(x) for x in (f, a, d, n)], listing()\n",
        "[os.read(f, 1).decode(), os.lseek(d, 0, 1), os.lseek(f, 3, 0), os.read(77, 2).decode(),"
        " os.lseek(f, 3, 0), json.loads(json.dumps(before)) == "
        " json.loads(json.dumps(([flags(x) for x in (f, a, d, n)], listing()))),"
        " os.lseek(a, 0, 1)]",
        ["3", 4, 3, "34", 3, True, 0],
        "os.lseek(f, 9, 0); os.write(a, b'more')",
    )


def test_process_14_offsets_and_buffers(world: World) -> None:
    live = world.start(
        "import os\n"
        "f = open('log.txt', 'w'); f.write('one\\n')\n"
        "open('src.txt', 'w').write(''.join(f'l{i}\\n' for i in range(10)))\n"
        "r = open('src.txt', 'rb', buffering=0); r.read(3)\n"
    )
    frozen = live.freeze()
    live.run("f.write('two\\n'); f.flush(); r.read(9)")
    live.kill()
    for word in ("three", "four"):
        (world.folder / "log.txt").write_text("")  # the filesystem's part of a restore
        woken = frozen.wake()
        assert woken.value("(r.tell(), r.read(3).decode(), f.tell())") == [3, "l1\n", 4]
        woken.run(f"f.write('{word}\\n'); f.flush()")
        assert (world.folder / "log.txt").read_text().split() == ["one", word]
        woken.kill()


def test_file_that_is_gone_fails_and_is_named(world: World) -> None:
    frozen, _ = frozen_and_killed(
        world, "f = os.open('gone', os.O_RDWR | os.O_CREAT)", "os.unlink('gone')"
    )
    woken = frozen.wake()
    assert [line[0] for line in woken.woken["report"]] == ["file"]
    assert "gone" in woken.woken["report"][0][2] and "not there" in woken.woken["report"][0][2]
    assert woken.value("(error_of(os.read, f, 1), error_of(os.write, f, b'x'))") == ["EBADF"] * 2
    assert woken.value("f in listing()")


def test_file_that_was_changed_is_named(world: World) -> None:
    """Nothing brings it back here: what differs is said, and nothing is written over."""
    setup = (
        "top = tempfile.mkdtemp(); names = [os.path.join(top, n) for n in 'abcd']\n"
        "for n in names: open(n, 'w').write('0123456789')\n"
        "log = os.open(names[0], os.O_WRONLY | os.O_APPEND)\n"
        "short = os.open(names[1], os.O_RDONLY); os.lseek(short, 8, 0)\n"
        "other = os.open(names[2], os.O_WRONLY | os.O_APPEND)\n"
        "same = os.open(names[3], os.O_RDWR); os.lseek(same, 4, 0)"
    )
    change = (
        "os.write(log, b'more'); os.truncate(names[1], 3); os.rename(names[2], names[2] + '.1')\n"
        "open(names[2], 'w').write('new'); os.write(same, b'45')"
    )
    frozen, _ = frozen_and_killed(world, setup, change)
    woken = frozen.wake()
    told = {line[2] for line in woken.woken["report"] if line[0] == "file"}
    [top] = {text.split("/a:")[0] for text in told if "/a:" in text}
    assert told == {
        f"{top}/a: is not as it was at the checkpoint (14 bytes, then 10), opened again to append "
        "to it",
        f"{top}/b: is not as it was at the checkpoint (3 bytes, then 10), opened again at its old "
        "offset",
        f"{top}/c: another file is there now (3 bytes, then 10), opened again to append to it",
    }
    woken.run("os.write(log, b'!'); os.write(other, b'!')")
    look = "[open(n, 'rb').read().decode() for n in (names[0], names[2], names[2] + '.1')]"
    assert woken.value(look) == ["0123456789more!", "new!", "0123456789"]


def test_odd_names(world: World) -> None:
    same_in_two_copies(
        world,
        "name = b'a\\n\\xff \\\\(deleted)'\n"
        "f = os.open(name, os.O_RDWR | os.O_CREAT); os.write(f, b'odd'); os.lseek(f, 0, 0)\n",
        "os.pread(f, 3, 0).decode()",
        "odd",
    )


def test_deleted_file_and_memfd(any_world: World) -> None:
    frozen = same_in_two_copies(
        any_world,
        "t = os.open('.', os.O_TMPFILE | os.O_RDWR, 0o640); os.write(t, b'unnamed')\n"
        "d = os.open('del', os.O_RDWR | os.O_CREAT); os.ftruncate(d, 1 << 20)\n"
        "os.pwrite(d, b'end', (1 << 20) - 3); os.unlink('del')\n"
        "m = os.memfd_create('mine', os.MFD_ALLOW_SEALING); os.write(m, b'memory')\n"
        "ro = os.open(f'/proc/self/fd/{m}', os.O_RDONLY)\n"
        "fcntl.fcntl(m, 1033, 2 | 4)\n",
        "[os.pread(t, 9, 0).decode(), os.lseek(t, 0, 1), oct(os.fstat(t).st_mode),"
        " os.pread(d, 9, (1 << 20) - 3).decode(), os.fstat(d).st_size, os.fstat(d).st_blocks < 64,"
        " os.pread(m, 9, 0).decode(), os.read(ro, 3).decode(), os.lseek(m, 0, 1),"
        " fcntl.fcntl(m, 1034), os.fstat(m).st_ino == os.fstat(ro).st_ino,"
        " error_of(os.ftruncate, m, 99)]",
        ["unnamed", 7, "0o100640", "end", 1 << 20, True, "memory", "mem", 6, 6, True, "EPERM"],
        "os.pwrite(t, b'other', 0); os.pwrite(m, b'other', 0); os.ftruncate(d, 0)",
    )
    assert frozen.report == []


def test_contents_over_the_limit_are_named(world: World) -> None:
    live = world.start(SETUP + "m = os.memfd_create('big'); os.write(m, b'x' * 100000)\n")
    frozen = live.freeze(aside_limit=50000)
    assert [line[:2] for line in frozen.report] == [["memory", "/memfd:big"]]
    live.kill()
    woken = frozen.wake()
    assert woken.value("[os.fstat(m).st_size, os.pread(m, 2, 0)[0]]") == [100000, 0]


def test_pipes(any_world: World) -> None:
    same_in_two_copies(
        any_world,
        "r, w = os.pipe(); os.write(w, b'hello'); w2 = os.dup(w)\n"
        "pr, pw = os.pipe2(os.O_DIRECT | os.O_NONBLOCK); os.write(pw, b'a'); os.write(pw, b'bc')\n"
        "fr, fw = os.pipe(); fcntl.fcntl(fw, 1031, 1 << 18); full = b'z' * (1 << 18)\n"
        "os.write(fw, full)\n"
        "os.mkfifo('fifo'); n = os.open('fifo', os.O_RDWR | os.O_NONBLOCK); os.write(n, b'named')\n"
        "f0 = [flags(x) for x in (r, w, w2, pr, pw, fr, fw, n)]\n",
        "[os.write(w2, b'!'), os.read(r, 99).decode(), os.read(pr, 9).decode(),"
        " os.read(pr, 9).decode(), error_of(os.read, pr, 9), fcntl.fcntl(fr, 1032),"
        " b''.join(os.read(fr, 1 << 16) for _ in range(4)) == full, os.read(n, 9).decode(),"
        " [flags(x) for x in (r, w, w2, pr, pw, fr, fw, n)] == f0]",
        [1, "hello!", "a", "bc", "EAGAIN", 1 << 18, True, "named", True],
        "os.read(r, 9); os.read(pr, 9); os.read(n, 9)",
    )


def test_pipes_to_a_child_end_cleanly(world: World) -> None:
    live = world.start(
        SETUP + "import subprocess\n"
        "p = subprocess.Popen(['/bin/cat'], stdin=-1, stdout=-1, bufsize=0)\n"
        "q = subprocess.Popen(['/bin/echo', 'left'], stdout=-1, bufsize=0)\n"
        "q.wait()\n"
        "signal.signal(signal.SIGPIPE, signal.SIG_IGN)\n"
    )
    frozen = live.freeze()
    kinds = [line[0] for line in frozen.report]
    assert kinds.count("pipe") == 3 and kinds.count("child") == 1
    assert any("cat" in line[2] for line in frozen.report if line[0] == "child")
    assert live.value("(p.stdin.write(b'on'), p.stdout.read(2).decode())") == [2, "on"]
    live.kill()
    woken = frozen.wake()
    assert woken.value("error_of(p.stdin.write, b'x')") == "EPIPE"
    assert woken.value("p.stdout.read().decode()") == ""
    assert woken.value("q.stdout.read().decode()") == "left\n"
    assert woken.value("error_of(os.waitpid, p.pid, 0)") == "ECHILD"


def test_child_sees_the_end_of_its_input(world: World) -> None:
    """process-10: no frozen process keeps the pipe open."""
    live = world.start(
        "import subprocess\n"
        "p = subprocess.Popen(['/usr/bin/wc', '-c'], stdin=-1, stdout=-1)\n"
        "p.stdin.write(b'x' * 10); p.stdin.flush()\n"
    )
    live.freeze()
    live.freeze()
    assert live.value("(p.communicate(timeout=60)[0].decode().strip(), p.returncode)") == ["10", 0]


def test_output_goes_to_the_new_pipes(any_world: World) -> None:
    live = any_world.start(
        SETUP + "d = os.dup(1)\n"
        "try: e = os.open('/proc/self/fd/2', os.O_WRONLY)\n"
        "except PermissionError: e = os.dup(2)  # a pipe that another user has made\n"
    )
    frozen = live.freeze()
    live.run("os.write(1, b'live '); os.write(d, b'dup')")
    assert live.output() == "live dup"
    live.kill()
    for _ in range(2):
        woken = frozen.wake()
        woken.run("os.write(1, b'a'); os.write(d, b'b'); os.write(2, b'c'); os.write(e, b'd')")
        assert (woken.output(), woken.errors()) == ("ab", "cd")
        woken.kill()


def test_unix_sockets(any_world: World) -> None:
    same_in_two_copies(
        any_world,
        "a, b = socket.socketpair(); a.send(b'to b'); b.send(b'to '); b.send(b'a')\n"
        "a.settimeout(60)\n"
        "a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 50000)\n"
        "size = a.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)\n"
        "c, d = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "c.send(b'1'); c.send(b'22')\n"
        "e, f = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); e.send(b'x'); e.send(b'yy')\n"
        "g, h = socket.socketpair(); g.send(b'bye'); g.shutdown(socket.SHUT_WR)\n"
        "i, j = socket.socketpair(); i.send(b'last'); i.close()\n",
        "[b.recv(9).decode(), a.recv(9).decode(), d.recv(9).decode(), d.recv(9).decode(),"
        " f.recv(9).decode(), f.recv(9).decode(), h.recv(9).decode(), h.recv(9).decode(),"
        " error_of(g.send, b'x'), h.send(b'k'), g.recv(1).decode(),"
        " a.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == size, a.send(b'z'),"
        " b.recv(1).decode(),"
        " j.recv(9).decode(), j.recv(9).decode(), error_of(j.send, b'x')]",
        ["to b", "to a", "1", "22", "x", "yy", "bye", "", "EPIPE", 1, "k", True, 1, "z",
         "last", "", "EPIPE"],
        "b.recv(9); d.recv(9); f.recv(9)",
    )  # fmt: skip


def test_listening_sockets(any_world: World) -> None:
    same_in_two_copies(
        any_world,
        "t = socket.create_server(('127.0.0.1', PORT), backlog=7)\n"
        "six = socket.AF_INET6\n"
        "s = socket.create_server(('::1', PORT), family=six) if socket.has_ipv6 else t\n"
        "u = socket.socket(socket.AF_UNIX); u.bind('u.sock'); u.listen(3)\n"
        "os.chmod('u.sock', 0o741)\n"
        "x = socket.socket(socket.AF_UNIX); x.bind(b'\\0tt-' + os.urandom(8)); x.listen()\n"
        "names = [v.getsockname() for v in (t, s, u, x)]\n"
        "def visit(server):\n"
        "  c = socket.socket(server.family); c.connect(server.getsockname())\n"
        "  p, _ = server.accept()\n"
        "  c.send(b'hi'); return p.recv(2).decode()\n",
        "[[visit(v) for v in (t, s, u, x)], [v.getsockname() for v in (t, s, u, x)] == names,"
        " oct(os.stat('u.sock').st_mode), struct.unpack('28xI', t.getsockopt(6, 11, 32))[0],"
        " t.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)]",
        [["hi"] * 4, True, "0o140741", 7, 1],
        "[v.close() for v in (t, s, u, x)]",
    )


def test_port_is_free_while_frozen(world: World) -> None:
    """process-11: no frozen process accepts, or keeps a port."""
    live = world.start(SETUP + "a = ('127.0.0.1', PORT); t = socket.create_server(a)\n")
    frozen = live.freeze()
    live.run("t.close()")
    assert live.value("error_of(socket.create_connection, a)") == "ECONNREFUSED"
    live.run("t = socket.create_server(a)")
    woken_beside = frozen.wake(1)
    assert [line[0] for line in woken_beside.woken["report"]] == ["socket"]
    assert "address taken" in woken_beside.woken["report"][0][2]


def test_connections_end_cleanly(world: World) -> None:
    live = world.start(
        SETUP + "t = socket.create_server(('127.0.0.1', 0))\n"
        "c = socket.create_connection(t.getsockname()); p, _ = t.accept(); p.send(b'unread')\n"
        "signal.signal(signal.SIGPIPE, signal.SIG_IGN)\n"
    )
    frozen = live.freeze()
    lines = [line for line in frozen.report if line[0] == "connection"]
    assert len(lines) == 2 and all("127.0.0.1" in line[2] for line in lines)
    assert live.value("c.recv(9).decode()") == "unread"
    live.kill()
    woken = frozen.wake()
    assert woken.value("error_of(c.recv, 9)") == "ENOTCONN"
    assert woken.value("error_of(p.send, b'x')") == "EPIPE"
    assert woken.value("bool(select.poll().register(c) or select.select([c], [], [], 0)[0])")
    assert woken.value("c.fileno() in listing()")


def test_udp_sockets(world: World) -> None:
    same_in_two_copies(
        world,
        "a = socket.socket(type=socket.SOCK_DGRAM); a.bind(('127.0.0.1', PORT))\n"
        "b = socket.socket(type=socket.SOCK_DGRAM); b.connect(a.getsockname())\n"
        "n = socket.socket(type=socket.SOCK_DGRAM); name = a.getsockname()\n"
        "own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); own.bind('d.sock')\n"
        "to = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "to.connect('d.sock'); to.send(b'q')\n",
        "[b.send(b'x'), a.recv(9).decode(), a.getsockname() == name, b.getpeername() == name,"
        " n.sendto(b'y', name), a.recv(9).decode(), to.send(b'z')]",
        [1, "x", True, True, 1, "y", 1],
    )


def test_epoll(any_world: World) -> None:
    same_in_two_copies(
        any_world,
        "r, w = os.pipe(); e = select.epoll(); e.register(r, select.EPOLLIN)\n"
        "v = os.eventfd(3); e.register(v, select.EPOLLIN | select.EPOLLET)\n"
        "a, b = socket.socketpair(); outer = select.epoll(); outer.register(e, select.EPOLLIN)\n"
        "libc = ctypes.CDLL(None); raw = struct.pack('=IQ', 1, 0xfedcba9876543210)\n"
        "libc.epoll_ctl(e.fileno(), 1, a.fileno(), raw)\n"
        "def events():\n  buf = ctypes.create_string_buffer(120)\n"
        "  n = libc.epoll_wait(e.fileno(), buf, 10, 0)\n"
        "  # Python leaves the upper half of its own data words undefined\n"
        "  words = [struct.unpack_from('=IQ', buf, 12 * i)[1] for i in range(n)]\n"
        "  return sorted(d if d == 0xfedcba9876543210 else d & 0xffffffff for d in words)\n",
        "[events() == [v], len(outer.poll(0)), os.write(w, b'x'), events() == [r],"
        " len(outer.poll(0)), b.send(b'x'), events() == [r, 0xfedcba9876543210]]",
        [True, 0, 1, True, 1, 1, True],
    )


def test_epoll_entry_that_fired_once_stays_off(world: World) -> None:
    same_in_two_copies(
        world,
        "v = os.eventfd(1); e = select.epoll()\n"
        "e.register(v, select.EPOLLIN | select.EPOLLONESHOT)\n"
        "first = len(e.poll(0))\n",
        "[first, len(e.poll(0)), e.modify(v, select.EPOLLIN), len(e.poll(0))]",
        [1, 0, None, 1],
    )


def test_eventfd(any_world: World) -> None:
    same_in_two_copies(
        any_world,
        "v = os.eventfd(5, os.EFD_NONBLOCK)\n"
        "s = os.eventfd(2, os.EFD_SEMAPHORE | os.EFD_NONBLOCK)\n"
        "z = os.eventfd(0, os.EFD_NONBLOCK)\n",
        "[os.eventfd_read(v), error_of(os.eventfd_read, v), os.eventfd_read(s), os.eventfd_read(s),"
        " error_of(os.eventfd_read, s), error_of(os.eventfd_read, z)]",
        [5, "EAGAIN", 1, 1, "EAGAIN", "EAGAIN"],
        "os.eventfd_read(v); os.eventfd_read(s)",
    )


TIMERFD = """
libc = ctypes.CDLL(None, use_errno=True)
def create(clock):
    return libc.timerfd_create(clock, 0o4000)
def arm(fd, value, interval, flags=0):
    parts = [part for t in (interval, value) for part in (int(t), int(t % 1 * 1e9))]
    spec = struct.pack("qqqq", *parts)
    assert libc.timerfd_settime(fd, flags, spec, None) == 0
def left(fd):
    buf = ctypes.create_string_buffer(32); libc.timerfd_gettime(fd, buf)
    i, n, s, m = struct.unpack("qqqq", buf.raw); return s + m / 1e9, i + n / 1e9
"""


def test_timerfd(any_world: World) -> None:
    same_in_two_copies(
        any_world,
        TIMERFD + "far = create(1); arm(far, 1000, 50); off = create(0)\n"
        "fired = create(1); arm(fired, 0.001, 0); time.sleep(.02)\n"
        "soon = create(1); arm(soon, 0.3, 0.3)\n"
        "at = create(0); arm(at, time.time() + 500, 0, 1)\n",
        "[900 < left(far)[0] <= 1000, left(far)[1], left(off)[0], error_of(os.read, off, 8),"
        " struct.unpack('Q', os.read(fired, 8))[0], 400 < left(at)[0] <= 500,"
        " bool(select.select([soon], [], [], 60)[0])]",
        [True, 50.0, 0.0, "EAGAIN", 1, True, True],
        "arm(far, 0, 0); os.read(fired, 8)",
    )


def test_signalfd(world: World) -> None:
    same_in_two_copies(
        world,
        "libc = ctypes.CDLL(None); mask = struct.pack('Q', 1 << (signal.SIGUSR1 - 1))\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
        "s = libc.syscall(289, -1, mask, 8, os.O_NONBLOCK)\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n",
        "[struct.unpack_from('I', os.read(s, 128))[0], error_of(os.read, s, 128),"
        " os.kill(os.getpid(), signal.SIGUSR1), struct.unpack_from('I', os.read(s, 128))[0]]",
        [10, "EAGAIN", None, 10],
        "os.read(s, 128)",
    )


def test_directories_devices_and_paths(any_world: World) -> None:
    same_in_two_copies(
        any_world,
        "os.makedirs('sub/deep'); d = os.open('sub', os.O_RDONLY | os.O_DIRECTORY)\n"
        "p = os.open('sub/deep', os.O_PATH); z = os.open('/dev/null', os.O_RDWR)\n"
        "u = os.open('/dev/urandom', os.O_RDONLY)\n",
        "[os.listdir(d), stat.S_ISDIR(os.fstat(p).st_mode), error_of(os.read, p, 1),"
        " os.write(z, b'x'), len(os.read(u, 4))]",
        [["deep"], True, "EBADF", 1, 4],
    )


def test_pseudo_terminal(world: World) -> None:
    frozen = same_in_two_copies(
        world,
        "m, s = pty.openpty(); attributes = termios.tcgetattr(s); attributes[3] &= ~termios.ECHO\n"
        "termios.tcsetattr(s, termios.TCSANOW, attributes); termios.tcsetwinsize(s, (33, 44))\n"
        "lone, other = pty.openpty(); os.close(other)\n"
        if hasattr(__import__("termios"), "tcsetwinsize")
        else "m, s = pty.openpty(); lone, other = pty.openpty(); os.close(other)\n",
        "[os.write(m, b'line\\n'), os.read(s, 9).decode(), os.write(s, b'x'), os.isatty(s),"
        " os.get_terminal_size(s).lines in (0, 33), error_of(os.read, lone, 1)]",
        [5, "line\n", 1, True, True, "EIO"],
    )
    assert {line[0] for line in frozen.report} == {"terminal"}


def test_inotify_is_empty_and_named(world: World) -> None:
    frozen, _ = frozen_and_killed(
        world,
        "libc = ctypes.CDLL(None); i = libc.inotify_init1(os.O_NONBLOCK)\n"
        "libc.inotify_add_watch(i, b'.', 0xfff)\n",
    )
    assert frozen.report[0][:2] == ["inotify", f"fd {frozen.report[0][1][3:]}"]
    woken = frozen.wake()
    assert woken.value("error_of(os.read, i, 999)") == "EAGAIN"
    assert woken.value("libc.inotify_add_watch(i, b'.', 0xfff)") == 1


def test_pidfd_reads_as_ended(world: World) -> None:
    setup = "child = os.fork() or time.sleep(1000); p = os.pidfd_open(child)"
    frozen, _ = frozen_and_killed(world, f"{setup}; own = os.pidfd_open(os.getpid())")
    assert sum(line[0] == "pidfd" for line in frozen.report) == 1
    woken = frozen.wake()
    assert woken.value("len(select.select([p], [], [], 60)[0])") == 1
    assert woken.value("error_of(signal.pidfd_send_signal, own, 0)") == "None"


def test_descriptor_in_flight_is_named(world: World) -> None:
    live = world.start(
        SETUP + "a, b = socket.socketpair()\n"
        "a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0]))])\n"
        "before = listing()\n"
    )
    frozen = live.freeze()
    assert "fds_in_flight" in [line[0] for line in frozen.report]
    assert live.value("listing() == before")


def test_live_keeps_its_descriptors_untouched(world: World) -> None:
    live = world.start(
        SETUP + "a, b = socket.socketpair(); a.send(b'q'); r, w = os.pipe(); os.write(w, b'p')\n"
        "f = os.open('x', os.O_RDWR | os.O_CREAT); os.write(f, b'abc'); os.lseek(f, 1, 0)\n"
        "m = os.memfd_create('m'); os.write(m, b'abc')\n"
    )
    before = live.value("listing()")
    live.freeze()
    assert live.value("listing()") == before
    assert live.value(
        "[os.read(r, 9).decode(), b.recv(9).decode(), os.lseek(f, 0, 1), os.lseek(m, 0, 1),"
        " b.getsockopt(socket.SOL_SOCKET, 42)]"
    ) == ["p", "q", 1, 3, -1]


def test_frozen_holds_one_descriptor(world: World) -> None:
    live = world.start(SETUP + "f = os.open('x', os.O_RDWR | os.O_CREAT)\n")
    frozen = live.freeze()
    path = f"/proc/{frozen.facts['frozen_pid']}/fd"
    assert until(lambda: live.value(f"len(os.listdir({path!r}))") == 1)
    assert frozen.ask(1).error == 0
    assert live.value(f"os.readlink('/proc/{frozen.facts['frozen_pid']}/cwd')") == "/"


@pytest.mark.parametrize("count", [700])
def test_many_descriptors(world: World, count: int) -> None:
    same_in_two_copies(
        world,
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))\n"
        f"v = [os.eventfd(i) for i in range({count})]\n",
        f"[os.eventfd_read(v[i]) for i in range(1, {count}, 100)],"
        "resource.getrlimit(resource.RLIMIT_NOFILE)",
        [list(range(1, count, 100)), [1024, 4096]],
    )
