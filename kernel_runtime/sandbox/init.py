"""The sandbox's init: owns, reaps and kills every process of a session; runs no user code.

It is process 1 of the sandbox's pid namespace, or, where there are no namespaces, a child subreaper
(prctl(2)), so that in both cases whatever a session starts stays below it. The supervisor speaks to
it over one SOCK_SEQPACKET socket in JSON, one request or report per packet:

    {"op": "spawn", "id": n, "argv": […], "env": {…}, "cwd": "…", "fds": [numbers]} + descriptors
        and "capabilities", "past_id", "nice": see kernel_runtime.sandbox.base
    {"op": "kill", "id": n, "keep": [pids]}      SIGKILL to all but keep; answered when reaped
    {"op": "signal", "id": n, "pid": p, "signal": s, "group": true}
    {"op": "list", "id": n}                      the processes of the session
    {"op": "stop_below", "id": n, "pid": p}      SIGSTOP to the descendants of a process
    {"op": "go_on", "id": n, "pids": [pids]}     SIGCONT
    environment, capture, restore, merge         see kernel_runtime.sandbox.environment

    {"re": n, …} or {"re": n, "error": errno, "text": "…"}
    {"exit": pid, "status": wait status}

When the socket closes (the supervisor is gone, whatever the way) it kills everything and leaves: no
process of a kernel outlives its supervisor.

Runs with the standard library only (``python -I -S``) so that it starts in little time and holds
little memory; called by kernel_runtime.sandbox.namespaces and .none only.
"""

from __future__ import annotations

import array
import contextlib
import errno
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

from kernel_runtime import later, linux
from kernel_runtime.engines.overlay import held
from kernel_runtime.sandbox.environment import EnvironmentOperations

ROOT_KEEPS = frozenset(
    {
        linux.CAP_CHOWN, linux.CAP_DAC_OVERRIDE, linux.CAP_FOWNER, linux.CAP_FSETID,
        linux.CAP_KILL, linux.CAP_SETGID, linux.CAP_SETUID, linux.CAP_SETPCAP,
        linux.CAP_NET_BIND_SERVICE, linux.CAP_NET_ADMIN, linux.CAP_NET_RAW, linux.CAP_IPC_LOCK,
        linux.CAP_IPC_OWNER, linux.CAP_SYS_CHROOT, linux.CAP_SYS_NICE, linux.CAP_SYS_RESOURCE,
        linux.CAP_MKNOD, linux.CAP_AUDIT_WRITE, linux.CAP_SETFCAP, linux.CAP_CHECKPOINT_RESTORE,
    }
)  # fmt: skip
"""What root's cells may do: install packages, but neither touch mounts nor look into init."""

_FDS_MOST = 253  # SCM_MAX_FD


def session_processes() -> list[int]:
    """Return the pids of all processes of the session: all descendants of this one."""
    if os.getpid() == 1:
        # whatever is in this pid namespace; with a thousand frozen ones no stat is read
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as f:
                # the name may hold spaces and parentheses: fields are counted from the last one
                fields = f.read().rpartition(b")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    todo = [os.getpid()]
    while todo:
        below = parents.get(todo.pop(), [])
        found += below
        todo += below
    return found


class Init:
    """The event loop of the init process. One instance per process."""

    def __init__(
        self, control: socket.socket, *, ordinary_user: bool, has_namespaces: bool = True
    ) -> None:
        self.control = control
        self.ordinary_user = ordinary_user
        self.has_namespaces = has_namespaces
        self.killing: list[dict[str, Any]] = []
        self.environment = EnvironmentOperations(self.send, self.session)

    def run(self) -> None:
        """Serve until the supervisor is gone, then kill everything that is left."""
        wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            poller = select.poll()
            watched = [self.control.fileno(), wake_r, *self.environment.watched()]
            for fd in watched:
                poller.register(fd, select.POLLIN)
            # while a kill is under way new processes may still appear: look again soon
            for fd, _ in poller.poll(2 if self.killing else None):
                if fd == wake_r:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake_r, 4096)
                elif fd != self.control.fileno():
                    self.environment.ready(fd)
                elif not self.serve():
                    self.kill_all()
                    return
            self.reap()
            self.advance_kills()
            self.environment.idle()

    def send(self, message: dict[str, Any]) -> None:
        _tell(self.control, message)

    def serve(self) -> bool:
        """Handle one request; return False at the end of the connection."""
        fds = array.array("i")
        try:
            room = socket.CMSG_SPACE(_FDS_MOST * fds.itemsize)
            data, ancillary, _, _ = self.control.recvmsg(1 << 20, room)
        except OSError:
            return False
        if not data:
            return False
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        request = json.loads(data)
        try:
            name = "op_" + request["op"]
            operation = getattr(self, name, None) or getattr(self.environment, name)
            answer = operation(request, list(fds))
        except OSError as error:
            answer = {"error": error.errno or errno.EIO, "text": str(error)}
        except Exception as error:  # init must live on: the session would end with it
            answer = {"error": errno.EIO, "text": f"{type(error).__name__}: {error}"}
        finally:
            for fd in fds:
                os.close(fd)
        if answer is not None:
            self.send({"re": request["id"], **answer})
        return True

    # Operations

    def op_spawn(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        report_r, report_w = os.pipe2(os.O_CLOEXEC)
        if request.get("past_id") and self.has_namespaces:
            _count_from(request["past_id"])
        pid = os.fork()
        if pid == 0:
            self.become(request, fds, report_w)
        os.close(report_w)
        with open(report_r, "rb") as report:
            failure = report.read().decode()
        if failure:
            os.waitpid(pid, 0)
            number, _, text = failure.partition(" ")
            raise OSError(int(number), text)
        return {"pid": pid}

    def become(self, request: dict[str, Any], fds: list[int], report: int) -> None:
        """In the child: set up and execute the program. Never returns."""
        try:
            signal.set_wakeup_fd(-1)
            os.setsid()
            for number in range(1, signal.NSIG):
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            # out of the way of the numbers that they shall have
            high = [os.dup(fd) for fd in fds] if set(fds) & set(request["fds"]) else fds
            for source, target in zip(high, request["fds"]):
                os.dup2(source, target, inheritable=True)
            os.chdir(request["cwd"])
            os.nice(request.get("nice", 0))
            self.give_up_rights(request.get("capabilities", "limited"))
            wanted = set(request["fds"])
            for name in os.listdir("/proc/self/fd"):
                fd = int(name)
                if fd not in wanted and fd != report:
                    with contextlib.suppress(OSError):
                        os.set_inheritable(fd, False)
            os.execvpe(request["argv"][0], request["argv"], request["env"])
        except BaseException as error:
            number = (error.errno if isinstance(error, OSError) else None) or errno.EIO
            os.write(report, f"{number} {error}".encode())
        finally:
            os._exit(127)

    def give_up_rights(self, how: str) -> None:
        """User code must not reach init or the mounts, nor gain what its user has not."""
        if self.ordinary_user and linux.has_capability(linux.CAP_CHECKPOINT_RESTORE):
            linux.raise_ambient(linux.CAP_CHECKPOINT_RESTORE)
        if not self.has_namespaces:
            return
        if self.ordinary_user:
            linux.limit_capabilities(frozenset({linux.CAP_CHECKPOINT_RESTORE}))
            linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        elif how == "limited":
            linux.limit_capabilities(ROOT_KEEPS)

    def session(self) -> list[int]:
        """All processes of the session but those that work for init."""
        workers = self.environment.worker_pids()
        return [pid for pid in session_processes() if pid not in workers]

    def op_signal(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        if request.get("group"):
            os.killpg(request["pid"], request["signal"])
        else:
            os.kill(request["pid"], request["signal"])
        return {}

    def op_list(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        return {"pids": session_processes()}

    def op_stop_below(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Answers with those that live, and with those of them that were not stopped before."""
        found: list[int] = []
        stopped: list[int] = []
        # until there are no new ones: a process may start another before it is stopped
        while new := [pid for pid in held.descendants(request["pid"]) if pid not in found]:
            found += new
            stopped += held.stop(new)
        return {"pids": found, "stopped": stopped}

    def op_go_on(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        held.go_on(request["pids"])
        return {}

    def op_kill(self, request: dict[str, Any], fds: list[int]) -> None:
        self.killing.append(request)

    # Reaping and killing

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.environment.worker_pids():
                continue  # its report ends too
            self.send({"exit": pid, "status": status})

    def advance_kills(self) -> None:
        for request in list(self.killing):
            keep = set(request["keep"])
            left = [pid for pid in self.session() if pid not in keep]
            if left:
                for pid in left:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
                self.reap()
                left = [pid for pid in self.session() if pid not in keep]
            if not left:
                self.killing.remove(request)
                self.send({"re": request["id"]})

    def kill_all(self) -> None:
        while below := session_processes():
            for pid in below:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.001)


class Refused(Exception):
    """A step of the setting up was refused."""

    def __init__(self, step: str, error: OSError) -> None:
        super().__init__(f"{step}: {error}")
        self.step = step
        self.error = error


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Name what is being done, for whoever is told that it was refused."""
    try:
        yield
    except OSError as error:
        raise Refused(name, error) from error


def enter_namespaces(mode: str) -> None:
    """Make the namespaces: the *next* child of this process is process 1 of the new pid namespace.

    user-namespaces: in a user namespace in which only this uid and gid exist (an ordinary user may
    always map those, user_namespaces(7)). root-user-namespaces: in one in which all ids of the
    present one are themselves. Raises Refused.
    """
    flags = linux.CLONE_NEWPID | linux.CLONE_NEWNS | linux.CLONE_NEWIPC
    if mode == "namespaces":
        with step("unshare"):
            linux.unshare(flags)
    elif mode == "user-namespaces":
        uid, gid = os.geteuid(), os.getegid()
        with step("unshare"):
            linux.unshare(flags | linux.CLONE_NEWUSER)
        with step("uid_map"):
            for name, text in (
                ("setgroups", "deny"),
                ("uid_map", f"{uid} {uid} 1"),
                ("gid_map", f"{gid} {gid} 1"),
            ):
                with open(f"/proc/self/{name}", "w") as f:
                    f.write(text)
    else:
        enter_with_all_ids(flags)


def enter_with_all_ids(flags: int) -> None:
    """Make a user namespace with the ids that there are here. Raises Refused.

    More ids than one are mapped by a process that has stayed outside: only there is it root.
    """
    maps = {}
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/self/{name}") as f:
            ranges = [line.split() for line in f]
        maps[name] = "".join(f"{inside} {inside} {count}\n" for inside, _, count in ranges)
    entered_r, entered_w = os.pipe()
    pid = os.getpid()
    helper = os.fork()
    if helper == 0:
        status = 0
        try:
            os.close(entered_w)
            if os.read(entered_r, 1):
                for name, text in maps.items():
                    with open(f"/proc/{pid}/{name}", "w") as f:
                        f.write(text)
        except OSError as error:
            status = error.errno or errno.EIO
        finally:
            os._exit(status)
    os.close(entered_r)
    try:
        with step("unshare"):
            linux.unshare(flags | linux.CLONE_NEWUSER)
        os.write(entered_w, b"x")
    finally:
        os.close(entered_w)
        code = os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1])
    if code:
        raise Refused("uid_map", OSError(abs(code), os.strerror(abs(code))))


def _put_clock_ahead(by_ns: int) -> None:
    """Let the next child and all after it have a monotonic clock that is ahead of the machine's.

    A process that comes back from an image waits for points of the clock that it knew, and that
    starts anew with the machine. time_namespaces(7); not before Linux 5.6. Where it is refused the
    clock is the machine's: whoever asked looks into timens_offsets.
    """
    if by_ns <= 0:
        return
    with contextlib.suppress(OSError):
        linux.unshare(linux.CLONE_NEWTIME)
        with open("/proc/self/timens_offsets", "w") as f:
            f.write(f"monotonic {by_ns // 10**9} {by_ns % 10**9}\n")


def _count_from(id: int) -> None:
    """The next process gets the id after this one, or one that is free behind it."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/ns_last_pid", "w") as f:
        f.write(str(id))


def _count_from_anywhere() -> None:
    """Let ids of processes begin at a number that each sandbox has for itself.

    A process that comes back from an image of an earlier kernel wants its old ids: here they shall
    be free. pid_namespaces(7) has the file.
    """
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/sys/kernel/pid_max") as f:
            most = int(f.read())
        first = int.from_bytes(os.urandom(4), "little") % max(1, most * 3 // 4)
        _count_from(max(300, first))


def _tell(control: socket.socket, message: dict[str, Any]) -> None:
    """A supervisor that is gone, such as one with a wrong setting, is noticed by who reads next."""
    with contextlib.suppress(OSError):
        control.send(json.dumps(message).encode())


def main() -> None:
    """Arguments: number of the control socket, mode (``none``, or those of sandbox.namespaces), and
    by how many nanoseconds the monotonic clock inside shall be ahead."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    mode = sys.argv[2]
    if mode == "none":
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
        os.setsid()
        _tell(control, {"pid": os.getpid()})
        _tell(control, {"ready": mode})
        Init(control, ordinary_user=os.geteuid() != 0, has_namespaces=False).run()
        return
    try:
        enter_namespaces(mode)
        _put_clock_ahead(int(sys.argv[3]))
        with step("fork"):
            pid = os.fork()
        if pid:
            _tell(control, {"pid": pid})
            return
        os.setsid()
        with step("mount"):
            # nothing that is mounted here reaches the host
            linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
        with step("mount /proc"):
            flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
            linux.mount("proc", "/proc", "proc", flags)
        _count_from_anywhere()
    except Refused as refused:
        refusal = {"refused": refused.step, "error": refused.error.errno or errno.EIO}
        _tell(control, refusal)
        os._exit(1)
    _tell(control, {"ready": mode})
    for _ in later.complete():
        pass
    Init(control, ordinary_user=os.geteuid() != 0).run()
