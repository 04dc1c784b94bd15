"""The kernel's five Jupyter channels, bound by the supervisor for as long as the kernel lives."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any, cast

import zmq
from jupyter_client.session import DELIM, Session
from traitlets.log import get_logger

from kernel_runtime.errors import TimeTravelError

Message = dict[str, Any]
Receiver = Callable[[list[bytes], Message, list[bytes]], None]

_BIND_S = 3.0
_PORTS = ("shell", "iopub", "stdin", "control", "hb")


class AddressTaken(TimeTravelError):
    """A port that the kernel was given is in use: it did not start."""


class Heartbeat(threading.Thread):
    """Echoes what it is sent, in a thread and context of its own, so that nothing delays it."""

    def __init__(self, endpoint: str, curve: dict[str, bytes]) -> None:
        super().__init__(name="heartbeat", daemon=True)
        # not _context: since Python 3.14 a thread has one of its own
        self._zmq: zmq.Context[Any] = zmq.Context()
        self._socket = self._zmq.socket(zmq.ROUTER)
        self._socket.linger = 0
        _secure(self._socket, curve)
        self.port = _bind(self._socket, endpoint)

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


class Channel:
    """One ZMQ socket in the event loop: all that waits is read when its descriptor says so."""

    def __init__(self, socket: zmq.Socket[Any], on_frames: Callable[[list[bytes]], None]) -> None:
        self._socket = socket
        self._on_frames = on_frames
        self._loop = asyncio.get_running_loop()
        self._pending = False
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

    def send(self, frames: Sequence[bytes]) -> None:
        """Send without waiting; what a client does not take any more is dropped by ZMQ."""
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK, copy=len(frames[-1]) < 65536)
        except zmq.ZMQError:
            return  # the client is gone
        if not self._pending:
            self._pending = True
            self._loop.call_soon(self.read)


class Channels:
    """Binds, receives, signs and sends. Knows nothing of what the messages mean."""

    def __init__(
        self, session: Session, connection: dict[str, Any], curve: dict[str, bytes]
    ) -> None:
        self.session = session
        self._context: zmq.Context[Any] = zmq.Context()
        self._sockets: dict[str, zmq.Socket[Any]] = {}
        self._channels: dict[str, Channel] = {}
        self._count = 0
        transport, ip = connection["transport"], connection["ip"]
        self.ports: dict[str, int] = {}
        for name in _PORTS:
            port = connection.get(f"{name}_port") or 0
            endpoint = f"{transport}://{ip}" + (
                f"-{port}" if transport == "ipc" else f":{port or '*'}"
            )
            if name == "hb":
                self.heartbeat = Heartbeat(endpoint, curve)
                self.ports["hb_port"] = self.heartbeat.port or port
                continue
            socket = self._context.socket(zmq.XPUB if name == "iopub" else zmq.ROUTER)
            socket.linger = 1000
            if name != "iopub":
                socket.router_handover = 1
            _secure(socket, curve)
            self.ports[f"{name}_port"] = _bind(socket, endpoint) or port
            self._sockets[name] = socket
        self.heartbeat.start()

    def receive(self, receivers: dict[str, Receiver]) -> None:
        """Begin to receive; a receiver is called with identities, message (content unpacked only
        by whoever needs it) and the frames after the signature."""
        for name, receiver in receivers.items():
            self._channels[name] = Channel(self._sockets[name], self._unpacker(receiver))
        self._channels["iopub"] = Channel(self._sockets["iopub"], self._welcome)

    def _welcome(self, frames: list[bytes]) -> None:
        """Tell a client whose subscription has come that it misses nothing from here on."""
        if frames[0][:1] != b"\x01":
            return
        topic = frames[0][1:]
        try:
            content = {"subscription": topic.decode()}
        except UnicodeDecodeError:
            return
        self.send("iopub", "iopub_welcome", content, None, [topic] if topic else [])

    def _unpacker(self, receiver: Receiver) -> Callable[[list[bytes]], None]:
        def unpack(frames: list[bytes]) -> None:
            try:
                identities, parts = self.session.feed_identities(frames)
                rest = cast("list[bytes]", parts)
                message = self.session.deserialize(list(rest), content=False)
            except Exception as error:  # unsigned, replayed or mangled: not a client of ours
                get_logger().warning("Ignored a message: %s", error)
                return
            receiver(identities, message, rest[1:])

        return unpack

    def read(self, name: str) -> None:
        """Take in what waits on a channel right now."""
        self._channels[name].read()

    # Sending

    def forward(
        self, name: str, identities: Sequence[bytes], header: dict[str, Any], rest: list[bytes]
    ) -> None:
        """Send a message of the executor under a header of ours.

        rest: the packed parent header, metadata, content and buffers. The message's id, session
        and date are made here: two processes woken from one checkpoint count alike, and a client
        drops a message whose signature it has seen.
        """
        header = {**header, **self._stamp()}
        frames = [json.dumps(header).encode(), *rest[:3]]
        signed = [*identities, DELIM, self.session.sign(frames), *frames, *rest[3:]]
        self._channels[name].send(signed)

    def send(
        self,
        name: str,
        msg_type: str,
        content: dict[str, Any],
        parent: Message | dict[str, Any] | None,
        identities: Sequence[bytes] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Send a message of our own. parent: a message, or a header."""
        parent_header: dict[str, Any] = (parent or {}).get("header", parent) or {}
        rest = [
            self.session.pack(parent_header),
            self.session.pack(metadata or {}),
            self.session.pack(content),
        ]
        header = {
            "msg_type": msg_type,
            "username": self.session.username,
            "version": "5.4",
        }
        topic = [msg_type.encode()] if identities is None else identities
        self.forward(name, topic, header, rest)

    def _stamp(self) -> dict[str, str]:
        self._count += 1
        return {
            "msg_id": f"{self.session.session}_{self._count}",
            "session": self.session.session,
            "date": datetime.now(timezone.utc).isoformat().replace("+00:00", "Z"),
        }

    def close(self) -> None:
        """Send what waits (within a second) and close."""
        self._context.destroy()


def _bind(socket: zmq.Socket[Any], endpoint: str) -> int:
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


def _secure(socket: zmq.Socket[Any], curve: dict[str, bytes]) -> None:
    if curve:
        socket.curve_secretkey = curve["secret"]
        socket.curve_publickey = curve["public"]
        socket.curve_server = True
