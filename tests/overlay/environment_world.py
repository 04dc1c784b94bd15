"""A real environment for tests: sandbox, engine, and a program inside that does file operations.

Run as a program it is the one inside: it answers requests, one JSON text a line. It holds nothing
open, so that a capture finds only what a test has asked it to hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import mmap
import os
import shutil
import signal
import stat
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).parent))

from overlay_world import OPS, Op, is_path, look, raw, text

USER = 65534  # nobody
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
PATIENCE = 120.0
"""Seconds after which what the sandbox or the engine does not do fails the test."""
OWN = "tt_"
"""Begins the names of what tests make directly in /."""

T = TypeVar("T")


def run_as(who: str, work: Callable[[], None]) -> None:
    """Do work in a child process that is root's or an ordinary user's; its failure is ours."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        told = ""
        try:
            os.close(reading)
            libc = ctypes.CDLL(None)
            if who == "user" and os.geteuid() == 0:
                os.setgroups([])
                os.setgid(USER)
                os.setuid(USER)
                libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # else /proc/self is still root's
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            work()
        except BaseException:
            told = traceback.format_exc()
        finally:
            with open(writing, "w", errors="backslashreplace") as out:
                out.write(told or "done")
            os._exit(0)
    os.close(writing)
    try:
        with open(reading, errors="replace") as result:
            told = result.read()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert told == "done", f"as {who}:\n{told or 'it was killed'}"


@dataclass
class Held:
    """A capture, and what was seen then."""

    captured: Any
    seen: dict[str, Any]


class Environment:
    """E, a directory that is captured; W, the workspace, which is the host's own; a store.

    apart: the store lies elsewhere, not below the root that it holds the layers of.
    """

    def __init__(self, *, apart: bool = False, store: Path | None = None) -> None:
        from kernel_runtime.engines.overlay import plan as planning
        from kernel_runtime.sandbox.namespaces import NamespaceSandbox

        self.loop = asyncio.new_event_loop()
        self.base = Path(tempfile.mkdtemp(prefix="tt-environment-", dir="/var/tmp"))
        self.elsewhere = Path(tempfile.mkdtemp(prefix="tt-store-")) if apart else None
        self.E, self.W = self.base / "E", self.base / "W"
        self.store = store or (self.elsewhere or self.base) / "store"
        self.directory = self.store / "environments" / "x"
        for path in (self.E, self.W, self.store):
            path.mkdir(exist_ok=True)
        self.own_user_namespace = NamespaceSandbox.mode == "user-namespaces"
        self._host = replace(
            planning.this_host(own_user_namespace=self.own_user_namespace),
            foreign=(),  # /var/tmp is covered all the same
            # the other directories of / would only cost time
            children=lambda path: ["var"] if path == "/" else planning._directories(path),
        )
        self.sandbox: Any = None
        self.engine: Any = None
        self.told: dict[str, str] = {}
        self._agent: tuple[int, Any, Any] | None = None
        self.notes: list[tuple[str, str, str]] = []

    @property
    def root(self) -> str:
        """The root that E lies in: /var, or a part of it where something is mounted there."""
        return str(self.engine.plan.root_of(str(self.E)).path)

    def do(self, work: Awaitable[T]) -> T:
        """Wait for something of the sandbox's or the engine's."""
        return self.loop.run_until_complete(asyncio.wait_for(work, PATIENCE))

    def start(self, **changes: Any) -> None:
        """Sandbox and engine, as a session starts them."""
        from kernel_runtime.engines.overlay import plan as planning
        from kernel_runtime.engines.overlay.directory import EnvironmentDirectory
        from kernel_runtime.engines.overlay.engine import OverlayEngine
        from kernel_runtime.sandbox.namespaces import NamespaceSandbox

        self.sandbox = NamespaceSandbox(lambda pid, status: None, lambda: None)
        self.do(self.sandbox.start())
        plan = planning.make_plan(
            replace(self._host, **changes),
            workspace=[str(self.W)],
            hidden=[str(self.store)],
            environment=str(self.directory),
        )
        self.engine = OverlayEngine(EnvironmentDirectory(self.directory), self.sandbox, plan)
        self.told = self.do(self.engine.start())

    # -- inside -----------------------------------------------------------------------------

    def ask(self, command: str, **args: Any) -> Any:
        """Let the program inside do something."""
        if self._agent is None:
            self._agent = self._spawn()
        _, asking, answers = self._agent
        asking.write(json.dumps([command, args]) + "\n")
        asking.flush()
        reply = json.loads(answers.readline() or '{"error": "it has ended"}')
        assert "error" not in reply, reply["error"]
        return reply["result"]

    def _spawn(self) -> tuple[int, Any, Any]:
        in_r, in_w = os.pipe()
        out_r, out_w = os.pipe()
        argv = [sys.executable, "-B", "-I", "-S", __file__]  # -B: -I ignores that variable
        pid = self.do(self.sandbox.spawn(argv, {}, "/", {0: in_r, 1: out_w, 2: 2}))
        os.close(in_r)
        os.close(out_w)
        return pid, open(in_w, "w"), open(out_r)

    def ops(self, top: str | Path, *ops: Op) -> None:
        """Do operations below a directory; what is refused is refused."""
        self.ask("ops", top=str(top), ops=ops)

    def seen(self) -> dict[str, Any]:
        """E as it is seen inside, and what was made in /."""
        found: dict[str, Any] = self.ask("look", top=str(self.E))
        if not self.own_user_namespace:
            found.update(self.ask("look_root"))
        return found

    # -- what a session does ----------------------------------------------------------------

    def capture(self) -> Held:
        """Capture while the program inside lives on."""
        captured = self.do(self.engine.capture(0, [], None))
        self.notes += captured.notes
        return Held(captured, self.seen())

    def end_all(self) -> None:
        """End every process inside."""
        self._leave()
        self.do(self.sandbox.kill_all_but([]))

    def _leave(self) -> None:
        if self._agent is not None:
            self._agent[1].close()
            self._agent[2].close()
            self._agent = None

    def restore(self, held: Held) -> bool:
        self.end_all()
        return bool(self.do(self.engine.restore(held.captured.stacks, held.captured.root_layer)))

    def referenced(self, helds: Iterable[Held]) -> set[str]:
        found = set()
        for held in helds:
            found |= {layer for stack in held.captured.stacks.values() for layer in stack}
            found.add(held.captured.root_layer)
        return found - {""}

    def restart(self, referenced: Iterable[str], *, killed: bool = False) -> None:
        """End and start again; killed: without a chance to write anything."""
        if killed:
            self._leave()
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.sandbox._pid, signal.SIGKILL)
        else:
            self.end_all()
        self.do(self.sandbox.close())
        if not killed:
            self.do(self.engine.close(referenced))
        self.start()
        self.do(self.engine.collect(referenced))

    def close(self) -> None:
        self._leave()
        if self.sandbox is not None:
            self.do(self.sandbox.close())
        self.loop.close()
        from kernel_runtime.engines.overlay.removal import remove_tree

        remove_tree(self.base)
        if self.elsewhere is not None:
            remove_tree(self.elsewhere)

    def layers(self) -> list[str]:
        return sorted(os.listdir(self.directory / "layers"))


# -- inside ----------------------------------------------------------------------------------


def see(top: bytes) -> dict[str, Any]:
    """What `look` sees, and which names are links to one file.

    Not how many links a file has: a merge of layers links files to layers that are not seen.
    """
    seen = look(top)
    names: dict[int, list[str]] = {}
    for path in sorted(seen):
        found = os.lstat(os.path.join(top, raw(path)))
        if not stat.S_ISDIR(found.st_mode):
            names.setdefault(found.st_ino, []).append(path)
    for one in names.values():
        for path in one[1:]:
            seen[path].append(one[0])
    return seen


def _unshare(flags: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        raise OSError(ctypes.get_errno(), "unshare")


class Holder:
    """A process in the background that holds a file or works in a directory."""

    def __init__(self, kind: str, path: bytes) -> None:
        ours, theirs = os.pipe(), os.pipe()
        self.kind, self.path = kind, path
        pid = os.fork()
        if pid == 0:
            os.close(ours[1])
            os.close(theirs[0])
            with contextlib.suppress(BaseException):
                self._live(ours[0], theirs[1])
            os._exit(0)
        os.close(ours[0])
        os.close(theirs[1])
        self._ask, self._answer = ours[1], theirs[0]
        self.works = os.read(theirs[0], 1) == b"."

    def poke(self) -> str:
        """Let it write; say what is wrong with what is seen of that."""
        if not self.works:
            return ""
        os.write(self._ask, b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            more = os.read(self._answer, 4096)
            if not more:
                return "it has ended"
            answer += more
        return answer.decode("latin-1").strip()

    def _live(self, ask: int, answer: int) -> None:
        within = self.kind in ("works in", "is locked in")
        if self.kind == "works in":
            os.chdir(self.path)
        elif self.kind == "is locked in":
            if os.getuid():
                _unshare(CLONE_NEWUSER)
            os.chroot(self.path)
        else:
            if self.kind == "has its own mounts":
                _unshare(CLONE_NEWNS | (CLONE_NEWUSER if os.getuid() else 0))
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW
            fd = os.open(self.path, flags, 0o644)
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return
            os.write(fd, os.urandom(6).hex().encode())
            if self.kind == "maps":
                os.ftruncate(fd, 4096)
                mapped = mmap.mmap(fd, 4096)
        os.write(answer, b".")
        while os.read(ask, 1):
            wrong = ""
            if within:
                name = "from-within" if self.kind == "works in" else "/from-within"
                with contextlib.suppress(OSError), open(name, "ab") as f:
                    f.write(b"w")
            else:
                same = self._content() == self._all(fd)
                if self.kind == "maps":
                    mapped[100:104] = os.urandom(4)
                    mapped.flush()
                else:
                    os.write(fd, b"+")
                if same and self._content() != self._all(fd):
                    wrong = f"what is written to {self.path!r} is not seen there"
            os.write(answer, wrong.encode("latin-1") + b"\n")

    def _content(self) -> bytes:
        try:
            return Path(os.fsdecode(self.path)).read_bytes()
        except OSError:
            return b""

    @staticmethod
    def _all(fd: int) -> bytes:
        return os.pread(fd, 1 << 20, 0)


def _replace_kind(path: bytes) -> None:
    """A file becomes a directory, a directory a file."""
    if stat.S_ISDIR(os.lstat(path).st_mode):
        shutil.rmtree(path)
        OPS["write"](path, "was a directory")
    else:
        os.unlink(path)
        os.mkdir(path)
        OPS["write"](path + b"/in", "was a file")


def _long(content: str) -> str:
    """``x*5000`` is that many of them: the model prints what it did."""
    what, times, count = content.partition("*")
    return what * int(count) if times else content


MORE_OPS = {
    **OPS,
    **{
        name: lambda path, content, do=OPS[name]: do(path, _long(content))
        for name in ("write", "append", "replace")
    },
    "other kind": _replace_kind,
    "chown": lambda path, uid, gid: os.chown(path, uid, gid, follow_symlinks=False),
    "device": lambda path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3)),
    "link out": lambda path: os.symlink(b"/nowhere/outside", path),
}


class Agent:
    """The program inside."""

    def __init__(self) -> None:
        self.holders: list[Holder] = []

    def ops(self, top: str, ops: Sequence[Op]) -> list[str]:
        refused = []
        prefix = raw_path(top)
        for name, *args in ops:
            try:
                MORE_OPS[name](*(prefix + b"/" + raw(a[1:]) if is_path(a) else a for a in args))
            except OSError as error:
                refused.append(f"{name} {args}: {error.strerror}")
        return refused

    def look(self, top: str) -> dict[str, Any]:
        return see(raw_path(top))

    def look_root(self) -> dict[str, Any]:
        found = {}
        for name in sorted(os.listdir(b"/")):
            if name.startswith(OWN.encode()):
                path = b"/" + name
                below = look(path) if os.path.isdir(path) and not os.path.islink(path) else {}
                found.update({f"{text(path)}/{key}": value for key, value in below.items()})
                if not below:
                    found[text(path)] = [os.lstat(path).st_mode, os.lstat(path).st_mtime_ns]
        return found

    def hold(self, top: str, kind: str, path: str) -> bool:
        holder = Holder(kind, raw_path(top) + b"/" + raw(path[1:]))
        self.holders.append(holder)
        return holder.works

    def poke(self) -> list[str]:
        return [wrong for holder in self.holders if (wrong := holder.poke())]

    def multiply(self, path: str) -> None:
        """Processes that start others without an end, each with a file of its own."""
        if os.fork():
            return
        number = 0
        while True:
            number += 1
            pid = os.fork()
            if pid:
                os.waitpid(pid, 0) if number % 3 else os._exit(0)
                continue
            name = f"{path}/{number % 20}"
            with contextlib.suppress(OSError), open(name, "ab") as f:
                f.write(b"x")
                f.flush()
                f.write(b"y")
            if number % 3:
                os._exit(0)

    def shell(self, code: str) -> Any:
        """Python code, whose `result` is the answer."""
        scope: dict[str, Any] = {"os": os, "Path": Path}
        exec(code, scope)
        return scope.get("result")


def raw_path(path: str) -> bytes:
    return os.fsencode(path)


def main() -> None:
    agent = Agent()
    for line in sys.stdin:
        command, args = json.loads(line)
        try:
            reply = {"result": getattr(agent, command)(**args)}
        except BaseException as error:
            reply = {"error": "".join(traceback.format_exception(error))}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
