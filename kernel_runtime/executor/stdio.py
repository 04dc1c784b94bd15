"""sys.stdout and sys.stderr of the executor: text goes over the link."""

from __future__ import annotations

import contextvars
import os
import threading
from json import dumps
from os import getpid
from typing import Any

from ipykernel.iostream import OutStream
from jupyter_client.jsonutil import json_default

from kernel_runtime.executor.link import Link


class LinkStream(OutStream):
    """ipykernel's stream with the transport replaced; parents per thread and context as there.

    In a process that user code forked, text goes to the standard descriptor instead, which the
    supervisor reads too: a child never writes to the link.
    """

    def __init__(self, session: Any, link: Link, name: str) -> None:
        # not OutStream.__init__: it starts a thread and takes the descriptors over
        self.session = session
        self.pub_thread = link
        self.name = name
        self.topic = b"stream." + name.encode()
        self._link = link
        self._fd = 1 if name == "stdout" else 2
        self._label = name.encode()
        self._parent_header: contextvars.ContextVar[dict[str, Any]] = contextvars.ContextVar(
            "parent_header"
        )
        self._parent_header.set({})
        self._parent_header_global: dict[str, Any] = {}
        self._isatty = False
        self._should_watch = False
        self._exc = None
        self.echo = None
        self._local = threading.local()
        self._encoded: tuple[Any, bytes] = (None, b"{}")

    def fileno(self) -> int:
        """Return 1 or 2: what is written there reaches the same cell."""
        return self._fd

    def _is_master_process(self) -> bool:
        return getpid() == self._link.pid

    def write(self, string: str) -> int:
        """Send text, with the parent of this thread or context."""
        if not isinstance(string, str):
            raise TypeError(f"write() argument must be str, not {type(string)}")
        if self.pub_thread is None:
            raise ValueError("I/O operation on closed file")
        if not string:
            return 0
        if getpid() != self._link.pid:
            os.write(self._fd, string.encode("utf-8", "replace"))
            return len(string)
        parent = self.parent_header
        if getattr(self._local, "hooks", None):
            message = self.session.msg("stream", {"name": self.name, "text": string}, parent=parent)
            for hook in self._hooks:
                message = hook(message)
                if message is None:
                    return len(string)
            string = message["content"]["text"]
        self._link.send_text(self._label, self._encode(parent), string)
        return len(string)

    def _encode(self, parent: dict[str, Any]) -> bytes:
        known, encoded = self._encoded
        if known is not parent:
            encoded = dumps(parent, default=json_default).encode()
            self._encoded = (parent, encoded)
        return encoded

    def flush(self) -> None:
        """Nothing is held back here."""

    def close(self) -> None:
        """Refuse further writes."""
        self.pub_thread = None
