"""The executor's end of the link to the supervisor.

Sending is possible from every thread and never tears a frame, whatever signal handler raises in
between. Receiving happens in the main thread only: in the event loop, or nested in a cell that
waits for an answer (``input()``, a magic).
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from fcntl import ioctl
from os import getpid  # where user code replaces os.getpid, the link goes on
from termios import FIONREAD
from typing import Any

from kernel_runtime.frames import Channel, Decoder, Frame, Kind, encode, encode_json, encode_text

_ATOMIC = 16384
"""Bytes: a stream socket takes this much in one piece or not at all, also when a signal comes."""

_CATCHABLE = signal.valid_signals() - {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}

_NOTHING = b"\0\0\0\0"
"""What FIONREAD gives for an empty pipe."""

_PATIENCE = 0.02
"""Seconds to wait for the supervisor to read what C code and children wrote before."""


class Link:
    """One Unix stream socket, frames both ways."""

    def __init__(self, fd: int, output: Sequence[int] = ()) -> None:
        """output: descriptors of our own on the pipes that 1 and 2 are at first."""
        self.fd = fd
        self.output = tuple(output)
        self._socket = socket.socket(fileno=fd)
        self._lock = threading.RLock()
        self._decoder = Decoder()
        # one buffer for all that comes: another mapping at each freeze lets no difference be made
        self._received = memoryview(bytearray(1 << 18))
        self._backlog: deque[Frame] = deque()
        self._descriptors: deque[int] = deque()
        self._impatient_until = 0.0
        self._silent = False
        self.on_backlog: Callable[[], None] = lambda: None
        self.pid = getpid()

    # Sending

    def send_message(self, channel: Channel, parts: Sequence[bytes | memoryview]) -> None:
        """Send a Jupyter message."""
        self._send(encode(Kind.MESSAGE, parts, channel))

    def send_text(self, name: bytes, parent: bytes, text: str) -> None:
        """Send printed text at once: held back, it would come after what C code writes next."""
        self._write(encode_text(name, parent, text.encode("utf-8", "replace")))

    def report(self, **fields: Any) -> None:
        """Send a report."""
        self._send(encode_json(Kind.REPORT, fields))

    def _send(self, buffers: Sequence[bytes | memoryview]) -> None:
        if getpid() != self.pid:
            return  # a forked child of user code: the link is not its own
        self._write(b"".join(buffers))

    def silence(self) -> None:
        """In a copy of the session: what it says is dropped, the descriptor is another's."""
        self._silent = True

    def _write(self, data: bytes) -> None:
        if self._silent:
            return
        with self._lock:
            for fd in self.output:
                if ioctl(fd, FIONREAD, _NOTHING) != _NOTHING:
                    self._let_pipes_drain()
                    break
            if len(data) <= _ATOMIC and self._socket.send(data) == len(data):
                return
            if len(data) <= _ATOMIC:
                raise ConnectionError("The supervisor's link took part of a frame.")
            # sendall of a long frame can be torn by an exception from a signal handler
            with _signals_blocked():
                self._socket.sendall(data)

    def _let_pipes_drain(self) -> None:
        """Keep the order of a cell's output.

        What C code and child processes wrote goes through pipes, Python's own output through the
        link. The supervisor reads the link before the pipes, so waiting here until the pipes are
        empty keeps the order both ways. The wait is bounded: a background process may write
        without end.
        """
        now = time.monotonic()
        if now < self._impatient_until:
            return
        end = now + _PATIENCE
        while any(map(_unread, self.output)):
            if time.monotonic() > end:
                self._impatient_until = time.monotonic() + 1.0
                return
            time.sleep(0.0001)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep all threads from sending: no frame is half sent when the process is frozen."""
        with self._lock:
            yield

    # Receiving

    def readable(self) -> list[Frame]:
        """Return the frames that have come, without waiting. Raises EOFError at the end."""
        if getpid() != self.pid:
            # a child that user code forked and let go on to the event loop: what comes over the
            # link is its parent's
            os._exit(0)
        self._receive()
        frames = [*self._backlog, *self._decoder]
        self._backlog.clear()
        return frames

    def wait(self, wanted: Callable[[Frame], bool], serve: Callable[[Frame], bool]) -> Frame:
        """Wait for a frame, in the middle of a cell; others are kept for the event loop.

        serve(frame) may handle a frame at once (it returns True). A signal handler may raise.
        Raises EOFError at the end of the link, RuntimeError in a process that user code forked.
        """
        if getpid() != self.pid:
            raise RuntimeError("A forked process cannot ask the notebook for anything.")
        while True:
            for frame in self._decoder:
                if wanted(frame):
                    self.on_backlog()  # what came with it waits in the decoder
                    return frame
                if not serve(frame):
                    self._backlog.append(frame)
                    self.on_backlog()
            select.select([self.fd], [], [])
            self._receive()

    def take_descriptor(self) -> int:
        """Return the oldest descriptor that came and was not taken yet."""
        return self._descriptors.popleft()

    def _receive(self) -> None:
        with _signals_blocked():
            while True:
                fds = array.array("i")
                try:
                    size, ancillary, _, _ = self._socket.recvmsg_into(
                        [self._received],
                        socket.CMSG_SPACE(8 * fds.itemsize),
                        socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC,
                    )
                except BlockingIOError:
                    return
                for level, kind, payload in ancillary:
                    if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                        fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                self._descriptors.extend(fds)
                if not size:
                    raise EOFError("The supervisor closed the link.")
                self._decoder.feed(bytes(self._received[:size]))

    def reset(self) -> None:
        """In a woken process: what its ancestor was sent is not for it."""
        self._decoder.clear()
        self._backlog.clear()
        self._descriptors.clear()
        self._impatient_until = 0.0
        self.pid = getpid()


def _unread(fd: int) -> bool:
    return ioctl(fd, FIONREAD, _NOTHING) != _NOTHING


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    old = signal.pthread_sigmask(signal.SIG_BLOCK, _CATCHABLE)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


class LinkSocket:
    """What ipykernel's code takes for a ZMQ socket: sends go to one channel of the link."""

    def __init__(self, link: Link, channel: Channel) -> None:
        self._link = link
        self._channel = channel

    def send_multipart(self, parts: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        """Send the frames of one message; zmq's flags and copy options have no meaning here."""
        self._link.send_message(
            self._channel, [p.bytes if hasattr(p, "bytes") else p for p in parts]
        )
