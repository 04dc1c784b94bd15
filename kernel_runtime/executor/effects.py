"""What a cell does to the world outside of the session, seen by Python's audit events (PEP 578).

A hook cannot be taken away again and is called for every event of the process, so the first thing
that it does is to leave: one look-up in a dict for an event that is not wanted. It must never
raise: that would make what the user does fail.

Not seen, since no event is raised for it: what child processes do (that they were started is),
what extension modules do by themselves, and a second use of a connection that is open.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from kernel_runtime.executor.link import Link

MOST: Final = 200
"""Different effects of one cell that are told; of more only the number."""

ARGUMENTS_LENGTH: Final = 200
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_METHODS: Final = frozenset(
    (b"GET", b"POST", b"PUT", b"PATCH", b"DELETE", b"HEAD", b"OPTIONS", b"CONNECT")
)
_NO_FILES: Final = ("/dev", "/proc", "/sys/fs/cgroup")

Event = tuple[Any, ...]


class Effects:
    """Collects the effects of the cell that runs. One per process."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._cell = ""
        self._listens = False
        self._found: dict[tuple[str, str], list[Any]] = {}
        self._more = 0
        self._new_files: set[str] = set()
        self._names: dict[int, set[str]] = {}
        self._thread = threading.local()
        self._held_cache: dict[str, bool] = {}
        self._trees: Mapping[str, bool] = {}
        self._held_by_default = False
        self.compensations: list[tuple[str, str]] = []
        self._handlers: dict[str, Callable[[Event], object]] = {
            "socket.connect": self._connect,
            "socket.sendto": self._datagram,
            "socket.sendmsg": self._datagram,
            "socket.getaddrinfo": self._look_up,
            "subprocess.Popen": self._popen,
            "os.system": lambda args: self._program(args[0]),
            "os.exec": lambda args: self._program(args[1]),
            "os.posix_spawn": lambda args: self._program(args[1]),
            "os.spawn": lambda args: self._program(args[2]),
            "pty.spawn": lambda args: self._program(args[0]),
            "open": self._open,
            "sqlite3.connect": lambda args: self._file("file", args[0]),
            "os.remove": lambda args: self._remove(args[0], args[1]),
            "os.rmdir": lambda args: self._remove(args[0], args[1]),
            "shutil.rmtree": lambda args: self._file("deleted", args[0]),
            "os.rename": self._rename,
            "os.truncate": lambda args: self._file("file", args[0]),
            "os.mkdir": lambda args: self._make(args[0], args[2]),
            "os.symlink": lambda args: self._make(args[1], args[2]),
            "os.link": lambda args: self._make(args[1], args[3]),
            "http.client.send": self._request,
            "smtplib.send": self._mail,
            "ftplib.sendcmd": self._ftp,
            "webbrowser.open": lambda args: self._add("browser", _url(args[0])),
            "syslog.syslog": lambda args: self._add("log", _cut(args[1]), local=True),
        }

    # -- the cell's frame -------------------------------------------------------------------

    def install(self) -> None:
        """Begin to listen, for the rest of the process's life."""
        wanted = self._handlers.get

        def hook(event: str, args: Event) -> None:
            handler = wanted(event)
            if handler is None or not self._listens:
                return
            with contextlib.suppress(Exception):
                handler(args)

        sys.addaudithook(hook)

    def obey(self, held: Sequence[str], not_held: Sequence[str], otherwise: bool) -> None:
        """The supervisor says which directories go back with a restore; the nearest one counts."""
        self._trees = {**dict.fromkeys(held, True), **dict.fromkeys(not_held, False)}
        self._held_by_default = otherwise
        self._held_cache = {}

    @property
    def cell(self) -> str:
        """The message id of the cell that runs, or nothing."""
        return self._cell if self._listens else ""

    def begin(self, cell: str) -> None:
        """A cell begins."""
        self._cell, self._listens = cell, True

    def end(self) -> None:
        """It has ended; its reply is not out yet."""
        self._listens = False

    def flush(self) -> None:
        """Tell the supervisor what there is to tell of a cell that has ended."""
        if self._listens:
            return
        cell, self._cell = self._cell, ""
        if not cell or not (self._found or self.compensations):
            return
        found, self._found = self._found, {}
        compensations, self.compensations = self.compensations, []
        effects = [
            [kind, subject, count, at, local]
            for (kind, subject), (count, at, local) in found.items()
            if kind != "file" or self._is_left(subject)
        ]
        if self._more:
            effects.append(["more", f"{self._more:,} more", self._more, time.time(), False])
        self._more = 0
        self._names, self._new_files = {}, set()
        self._held_cache = {}
        self._link.report(report="effects", cell=cell, effects=effects, compensations=compensations)

    def _is_left(self, path: str) -> bool:
        """Whether a file that was written is to be told of: not one that came and went."""
        if path in self._new_files:
            return os.path.lexists(path)
        return not os.path.isdir(path)  # tempfile opens a directory by an opener of its own

    def _add(self, kind: str, subject: str, *, local: bool = False) -> None:
        known = self._found.get((kind, subject))
        if known is not None:
            known[0] += 1
        elif len(self._found) < MOST:
            self._found[kind, subject] = [1, time.time(), local]
        else:
            self._more += 1

    # -- connections ------------------------------------------------------------------------

    def _look_up(self, args: Event) -> None:
        host, port = args[0], args[1]
        if not host or _is_address(_text(host)):
            return
        with contextlib.suppress(TypeError, ValueError):
            self._thread.looked_up = (_text(host), int(port))
            self._names.setdefault(int(port), set()).add(_text(host))

    def _connect(self, args: Event) -> None:
        self._reach("connection", args[1])

    def _datagram(self, args: Event) -> None:
        if args[1] is not None:
            self._reach("datagram", args[1])

    def _reach(self, kind: str, address: Any) -> None:
        if isinstance(address, tuple) and len(address) >= 2:
            host, port = _text(address[0]), address[1]
            name = self._name_of(host, port)
            shown = f"[{host}]" if ":" in host else host
            local = host.startswith("127.") or host in ("::1", "localhost", "", "0.0.0.0", "::")
            self._add(kind, f"{name or shown}:{port}", local=local)
        elif isinstance(address, (str, bytes)):
            path = _text(address)
            self._add(kind, f"unix:{path.replace(chr(0), '@', 1)}", local=True)

    def _name_of(self, host: str, port: Any) -> str:
        """The name that was looked up for an address, where there can be no doubt."""
        if not _is_address(host):
            return host
        looked_up = getattr(self._thread, "looked_up", None)
        names = self._names.get(port, set())
        if looked_up is not None and looked_up[1] == port and looked_up[0] in names:
            return str(looked_up[0])
        return next(iter(names)) if len(names) == 1 else ""

    def _request(self, args: Event) -> None:
        connection, data = args
        if not isinstance(data, (bytes, bytearray)):
            return
        method, _, rest = bytes(data[:2000]).partition(b" ")
        if method not in _METHODS:
            return  # a body, or more of one
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0].decode("utf-8", "replace")
        host = getattr(connection, "host", "?")
        local = host in ("localhost", "::1") or str(host).startswith("127.")
        # what stands after the question mark may be a secret
        self._add(
            "request",
            _cut(f"{method.decode()} {host}:{getattr(connection, 'port', '?')}{path}"),
            local=local,
        )

    def _mail(self, args: Event) -> None:
        data = args[1].encode() if isinstance(args[1], str) else bytes(args[1][:10])
        if data[:9].lower() == b"mail from":
            self._add("mail", _text(getattr(args[0], "_host", "") or "a server"))

    def _ftp(self, args: Event) -> None:
        verb = str(args[1]).split(" ", 1)[0].upper()
        if verb not in ("USER", "PASS", "ACCT", "TYPE", "PASV", "EPSV", "QUIT", "CWD", "PWD"):
            self._add("request", _cut(f"FTP {getattr(args[0], 'host', '?')} {args[1]}"))

    # -- programs ---------------------------------------------------------------------------

    def _popen(self, args: Event) -> None:
        self._program(args[1])
        self._thread.argv = args[1]

    def _program(self, argv: Any) -> None:
        last, self._thread.argv = getattr(self._thread, "argv", None), None
        if last is not None and last == argv:
            return  # subprocess tells of it, and then the system call that it makes
        if isinstance(argv, (str, bytes)):
            text = _text(argv)
        else:
            words = [_text(word) for word in argv]
            is_shell = len(words) == 3 and words[1] == "-c" and words[0].endswith("sh")
            text = words[2] if is_shell else " ".join(words)
        self._add("program", _cut(text))

    # -- files ------------------------------------------------------------------------------

    def _open(self, args: Event) -> None:
        path, _, flags = args
        if flags & _WRITES and not flags & os.O_DIRECTORY and isinstance(path, (str, bytes)):
            self._file("file", path, new=bool(flags & os.O_EXCL))

    def _remove(self, path: Any, directory: int) -> None:
        if directory in (-1, None):
            name = self._file("deleted", path)
            if name in self._new_files:
                # made and removed by the same cell: nothing is left of it
                self._found.pop(("deleted", name), None)

    def _make(self, path: Any, directory: int) -> None:
        if directory in (-1, None):
            self._file("file", path, new=True)

    def _rename(self, args: Event) -> None:
        source, target, from_directory, to_directory = args
        if from_directory not in (-1, None) or to_directory not in (-1, None):
            return
        old, new = _absolute(source), _absolute(target)
        if old in self._new_files:
            self._new_files.discard(old)
            self._found.pop(("file", old), None)
            self._file("file", new)
        elif not (self._is_held(old) and self._is_held(new)):
            self._add("moved", f"{old} to {new}")

    def _file(self, kind: str, path: Any, new: bool = False) -> str:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return ""  # a descriptor: it was opened before
        name = os.fspath(path)
        if not name or name in (":memory:", b":memory:"):
            return ""
        name = _absolute(name)
        if self._is_held(name):
            return ""
        # a new directory holds new files only
        new = new or os.path.dirname(name) in self._new_files
        if kind == "file" and new and ("file", name) not in self._found:
            self._new_files.add(name)
        self._add(kind, name)
        return name

    def _is_held(self, path: str) -> bool:
        """Whether it goes back with a restore, or is no file at all."""
        directory = os.path.dirname(path)
        known = self._held_cache.get(directory)
        if known is None:
            known = self._held_cache[directory] = self._look(directory)
        return known

    def _look(self, directory: str) -> bool:
        real = os.path.realpath(directory)
        if os.path.basename(real) == "__pycache__":
            return True
        parts = list(accumulate(real.split("/"), lambda a, b: f"{a}/{b}"))
        if any(part in _NO_FILES for part in parts[:3]) and not real.startswith("/dev/shm"):
            return True
        for part in reversed(parts):
            held = self._trees.get(part or "/")
            if held is not None:
                return held
        return self._held_by_default


def _absolute(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path))


def _text(value: Any) -> str:
    return os.fsdecode(value) if isinstance(value, (str, bytes, os.PathLike)) else str(value)


def _is_address(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()


def _cut(text: Any) -> str:
    shown = _text(text)
    return shown if len(shown) <= ARGUMENTS_LENGTH else shown[: ARGUMENTS_LENGTH - 1] + "…"


def _url(url: Any) -> str:
    return _cut(str(url).split("?", 1)[0])
