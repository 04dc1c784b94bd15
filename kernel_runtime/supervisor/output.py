"""Printed text on its way to IOPub: neighbours are joined, so a storm of prints is no storm."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import os
import select
from collections.abc import Callable
from typing import Any

Publish = Callable[[str, str, dict[str, Any]], None]

_DELAY = 0.02
"""Seconds that text may wait for more; it goes earlier when anything else is published."""

_MOST = 1 << 16
"""Characters that one message carries before it goes at once."""


class StreamJoiner:
    """Joins texts of one stream and parent into one ``stream`` message."""

    def __init__(self, publish: Publish) -> None:
        """publish(name, text, parent header) sends one message."""
        self._publish = publish
        self._loop = asyncio.get_running_loop()
        self._key: tuple[str, bytes] = ("", b"")
        self._texts: list[str] = []
        self._length = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, name: str, parent: bytes, text: str) -> None:
        """Take in text; parent is a header as JSON."""
        key = (name, parent)
        if key != self._key and self._texts:
            self.flush()
        self._key = key
        self._texts.append(text)
        self._length += len(text)
        if self._length >= _MOST:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(_DELAY, self.flush)

    def flush(self) -> None:
        """Publish what waits. Called before any other message, so that the order holds."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._texts:
            return
        name, parent = self._key
        text = "".join(self._texts)
        self._texts.clear()
        self._length = 0
        self._publish(name, text, json.loads(parent))


class OutputPipe:
    """The read end of the executor's descriptor 1 or 2: C code's and child processes' output."""

    def __init__(self, name: str, on_text: Callable[[str, str], None], before: Callable[[], None]):
        """before() is called ahead of each read: see Link._let_pipes_drain in the executor."""
        self.name = name
        self._on_text = on_text
        self._before = before
        self._loop = asyncio.get_running_loop()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._read_end, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read_end, False)
        self._open = True
        self._poll = select.poll()
        self._poll.register(self._read_end, select.POLLIN)
        self._loop.add_reader(self._read_end, self.read)

    def handed_over(self) -> None:
        """The executor has its copy of the write end."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def read(self) -> None:
        """Take in what has come.

        The executor sends nothing over the link while a pipe holds text, so the order is kept by
        this one: see that there is text, take in the link's frames (all older), then the text.
        """
        while self._open and self._has_text():
            self._before()
            if not self._open:
                return
            try:
                data = os.read(self._read_end, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self.close()
                return
            text = self._decoder.decode(data)
            if text:
                self._on_text(self.name, text)

    def _has_text(self) -> bool:
        return bool(self._poll.poll(0))

    def close(self) -> None:
        """Stop reading. The second call does nothing."""
        self.handed_over()
        if self._open:
            self._open = False
            self._loop.remove_reader(self._read_end)
            with contextlib.suppress(OSError):
                os.close(self._read_end)
