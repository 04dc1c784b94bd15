"""One line on a terminal that says how far long work is, and goes away with it."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from jupyter_timetravel.meter import Meter
from kernel_runtime.errors import TimeTravelError
from kernel_runtime.timeline.text import one_line

if TYPE_CHECKING:
    from jupyter_timetravel.access.session import Access
    from jupyter_timetravel.records import Event

_FIRST_S: Final = 0.5
"""Work that is done sooner shows nothing."""
_LOOK_S: Final = 0.25
_WIDTH: Final = 78
"""Columns at most; a line that is longer than the terminal would not go away."""


class Progress:
    """Shown while its block runs, on standard error if that is a terminal.

    session: one whose kernel runs says how far it is. meter: what the work counts itself with.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        session: Access | None = None,
        meter: Meter | None = None,
    ) -> None:
        self._session = session
        self.meter = meter or Meter()
        self._wanted = not getattr(args, "json", False) and sys.stderr.isatty()
        self._ended = threading.Event()
        self._step = ""
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Progress:
        if self._wanted:
            asked = self._session is not None and self._session.running
            work = [self._show, *([self._listen] if asked else [])]
            self._threads = [threading.Thread(target=one, daemon=True) for one in work]
            for thread in self._threads:
                thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def say(self, text: str) -> None:
        """Show this from now on."""
        self._step = text

    def _show(self) -> None:
        started, drawn = time.monotonic(), False
        while not self._ended.wait(_LOOK_S):
            waited = time.monotonic() - started
            if waited >= _FIRST_S:
                step = self.meter.text() or self._step or "at work"
                line = one_line(f"{waited:.0f} s: {step}", _columns())
                print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
                drawn = True
        if drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _listen(self) -> None:
        # slow to import, and needed at a terminal only
        from jupyter_timetravel.access.live import LiveAccess
        from jupyter_timetravel.client import Client

        assert isinstance(self._session, LiveAccess)
        with (
            suppress(TimeTravelError, OSError),
            Client.from_connection_file(self._session.kernel.connection_file) as client,
            client.events(timeout=_LOOK_S) as events,
        ):
            while not self._ended.is_set():
                for event in events:
                    self._step = step_text(event) or self._step
                    if self._ended.is_set():
                        return


def _columns() -> int:
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except OSError:
        return _WIDTH
    return min(_WIDTH, columns - 1) if columns > 1 else _WIDTH  # 0: it does not say


def step_text(event: Event) -> str:
    """What an event says of how far the work is; nothing if it says nothing of that."""
    content: Any = event.content
    if event.name == "replay_progress":
        return f"cell {content['step']} of {content['of']}: {content['code']}"
    if event.name == "restore_progress":
        return f"restore: {content['step']}"
    return ""
