"""The kernel's five Jupyter channels, bound by the supervisor for as long as the kernel lives.

What takes long to import (ZMQ, jupyter_client) is imported when they are opened.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final, cast

from traitlets.log import get_logger

if TYPE_CHECKING:
    import zmq
    from jupyter_client.session import Session

    from kernel_runtime.supervisor.sockets import Heartbeat, LoopSocket

Message = dict[str, Any]
Receiver = Callable[[list[bytes], Message, list[bytes]], None]

DELIM: Final = b"<IDS|MSG>"
"""Between a message's identities and its signature (Jupyter's wire protocol)."""

_PORTS: Final = ("shell", "iopub", "stdin", "control", "hb")


class Channels:
    """Binds, receives, signs and sends. Knows nothing of what the messages mean."""

    session: Session
    _context: zmq.Context[Any]
    _heartbeat: Heartbeat

    def __init__(self) -> None:
        """Nothing is bound before open()."""
        self._sockets: dict[str, zmq.Socket[Any]] = {}
        self._channels: dict[str, LoopSocket] = {}
        self._count = 0
        self.counts_subscribers = False
        """Whether each subscription is seen; else the first one of a topic."""
        self.subscribers = 0
        self.ports: dict[str, int] = {}

    def open(
        self, session: Session, connection: Mapping[str, Any], curve: Mapping[str, bytes]
    ) -> None:
        """Bind to where a connection file says. Raises AddressTaken."""
        import zmq

        from kernel_runtime.supervisor.sockets import Heartbeat, bind, secure

        self.session = session
        self._context = zmq.Context()
        transport, ip = connection["transport"], connection["ip"]
        for name in _PORTS:
            port = connection.get(f"{name}_port") or 0
            endpoint = f"{transport}://{ip}" + (
                f"-{port}" if transport == "ipc" else f":{port or '*'}"
            )
            if name == "hb":
                self._heartbeat = Heartbeat(endpoint, curve)
                self.ports["hb_port"] = self._heartbeat.port or port
                continue
            socket = self._context.socket(zmq.XPUB if name == "iopub" else zmq.ROUTER)
            self._sockets[name] = socket
            socket.linger = 1000
            if name != "iopub":
                socket.router_handover = 1
            elif self.counts_subscribers:
                socket.setsockopt(zmq.XPUB_VERBOSER, 1)
            secure(socket, curve)
            self.ports[f"{name}_port"] = bind(socket, endpoint) or port
        self._heartbeat.start()

    def receive(self, receivers: dict[str, Receiver]) -> None:
        """Begin to receive; a receiver is called with identities, message (content unpacked only
        by whoever needs it) and the frames after the signature."""
        from kernel_runtime.supervisor.sockets import LoopSocket

        for name, receiver in receivers.items():
            self._channels[name] = LoopSocket(self._sockets[name], self._unpacker(receiver))
        self._channels["iopub"] = LoopSocket(self._sockets["iopub"], self._welcome)

    def _welcome(self, frames: list[bytes]) -> None:
        """Tell a client whose subscription has come that it misses nothing from here on."""
        self.subscribers += 1 if frames[0][:1] == b"\x01" else -1
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

    def unpacked(
        self, identities: list[bytes], frames: list[bytes]
    ) -> tuple[list[bytes], Message, list[bytes]]:
        """What a receiver was called with, of what it was called with in another process."""
        signed = [self.session.sign(frames[:4]), *frames]
        return identities, self.session.deserialize(signed, content=False), frames

    def be_patient(self, seconds: float) -> None:
        """Replies to clients that have not connected yet wait for them so long."""
        for name in ("shell", "control"):
            self._channels[name].be_patient(seconds)

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
        if self._sockets:
            self._context.destroy()
