"""The ZMQ sockets of a kernel, one class for those in the event loop, one for the heartbeat's."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import zmq
from traitlets.log import get_logger

from kernel_runtime.errors import TimeTravelError

_BIND_S: Final = 3.0
_AGAIN_S: Final = 0.05


class AddressTaken(TimeTravelError):
    """A port that the kernel was given is in use: it did not start."""


class Heartbeat(threading.Thread):
    """Echoes what it is sent, in a thread and context of its own, so that nothing delays it."""

    def __init__(self, endpoint: str, curve: Mapping[str, bytes]) -> None:
        super().__init__(name="heartbeat", daemon=True)
        # not _context: since Python 3.14 a thread has one of its own
        self._zmq: zmq.Context[Any] = zmq.Context()
        self._socket = self._zmq.socket(zmq.ROUTER)
        self._socket.linger = 0
        secure(self._socket, curve)
        self.port = bind(self._socket, endpoint)

    def run(self) -> None:
        """Echo until the process ends."""
        while True:
            try:
                zmq.proxy(self._socket, self._socket)
            except zmq.ContextTerminated:
                return
            except zmq.ZMQError as error:
                if error.errno != errno.EINTR:
                    raise


class LoopSocket:
    """One ZMQ socket in the event loop: all that waits is read when its descriptor says so."""

    def __init__(self, socket: zmq.Socket[Any], on_frames: Callable[[list[bytes]], None]) -> None:
        self._socket = socket
        self._on_frames = on_frames
        self._loop = asyncio.get_running_loop()
        self._pending = False
        self._patient_until = 0.0
        self._loop.add_reader(cast("int", socket.get(zmq.FD)), self.read)

    def read(self) -> None:
        """Hand on what waits. The descriptor is edge-triggered (zmq_getsockopt, ZMQ_FD): a send
        may swallow the edge of an arrival, so this runs after each send too."""
        self._pending = False
        while not self._socket.closed:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._on_frames(frames)
            except Exception:  # one message must not stop the channel: the edge does not come again
                get_logger().exception("A message could not be handled.")

    def be_patient(self, seconds: float) -> None:
        """For so long, what is for a client that is not there is kept for it (ROUTER)."""
        self._patient_until = time.monotonic() + seconds
        self._socket.router_mandatory = 1  # else it would be dropped without a word

    def send(self, frames: Sequence[bytes]) -> None:
        """Send without waiting; what a client does not take any more is dropped by ZMQ."""
        if self._socket.closed:
            return
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK, copy=len(frames[-1]) < 65536)
        except zmq.ZMQError as error:
            if error.errno == errno.EHOSTUNREACH and time.monotonic() < self._patient_until:
                self._loop.call_later(_AGAIN_S, self.send, frames)
            return  # the client is gone
        if not self._pending:
            self._pending = True
            self._loop.call_soon(self.read)


def bind(socket: zmq.Socket[Any], endpoint: str) -> int:
    """Bind; return the port that was taken, 0 for transports without ports.

    Whoever started the kernel chose the port and let go of it: until now somebody else may have
    got it, for a connection of his that soon ends. Raises AddressTaken.
    """
    until = time.monotonic() + _BIND_S
    while True:
        try:
            socket.bind(endpoint)
            break
        except zmq.ZMQError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            if time.monotonic() > until:
                raise AddressTaken(
                    f"Another program uses {endpoint}. The kernel did not start, and nothing was "
                    "changed; start it again, with other ports."
                ) from error
            time.sleep(0.05)
    taken = socket.get(zmq.LAST_ENDPOINT)
    text = taken.decode() if isinstance(taken, bytes) else str(taken)
    return int(text.rpartition(":")[2].rstrip("\0")) if text.startswith("tcp") else 0


def secure(socket: zmq.Socket[Any], curve: Mapping[str, bytes]) -> None:
    if curve:
        socket.curve_secretkey = curve["secret"]
        socket.curve_publickey = curve["public"]
        socket.curve_server = True
