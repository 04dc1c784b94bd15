"""The supervisor's end of the link to one executor: frames in and out of the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Any

from kernel_runtime.frames import Channel, Decoder, Frame, Kind, encode, encode_json

_READ = 1 << 20


class ExecutorLink:
    """One Unix stream socket. Reads as fast as it can, so that the executor never waits long."""

    def __init__(
        self,
        connection: socket.socket,
        on_frame: Callable[[Frame], None],
        on_end: Callable[[], None],
    ) -> None:
        """on_end is called once, when the executor (and whoever else held its end) is gone."""
        connection.setblocking(False)
        self._socket = connection
        self._decoder = Decoder()
        self._on_frame = on_frame
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._outgoing = bytearray()
        self._descriptors: list[tuple[int, list[int]]] = []
        self._sent = 0
        self.closed = False
        self._loop.add_reader(connection, self.read)

    def read(self) -> None:
        """Take in what has come. Also called before the pipes are read, to keep the order."""
        while not self.closed:
            try:
                data = self._socket.recv(_READ)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                self._on_end()
                return
            self._decoder.feed(data)
            for frame in self._decoder:
                self._on_frame(frame)
            if len(data) < _READ:
                return

    def send_message(self, channel: Channel, parts: Sequence[bytes]) -> None:
        """Send a Jupyter message."""
        self._send(encode(Kind.MESSAGE, parts, channel))

    def command(self, command: str, fds: Sequence[int] = (), **fields: Any) -> None:
        """Send a command, with descriptors; they may be closed once this returns."""
        if self.closed:
            return
        if fds:
            # descriptors must go with a byte of their own frame: nothing else may be under way
            while self._outgoing:
                self._socket.setblocking(True)
                self._write()
            self._socket.setblocking(True)
            data = b"".join(encode_json(Kind.COMMAND, {"command": command, **fields}))
            with contextlib.suppress(OSError):
                socket.send_fds(self._socket, [data], list(fds))
            self._socket.setblocking(False)
        else:
            self._send(encode_json(Kind.COMMAND, {"command": command, **fields}))

    def _send(self, buffers: Sequence[bytes]) -> None:
        if self.closed:
            return
        waiting = bool(self._outgoing)
        self._outgoing += b"".join(buffers)
        if not waiting:
            self._write()

    def _write(self) -> None:
        try:
            sent = self._socket.send(self._outgoing)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._outgoing.clear()  # the reader sees the end
            return
        del self._outgoing[:sent]
        if self._outgoing:
            self._loop.add_writer(self._socket, self._write)
        else:
            self._loop.remove_writer(self._socket)

    def close(self) -> None:
        """Stop reading and close. The second call does nothing."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
