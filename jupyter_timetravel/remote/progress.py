"""How far a transfer is, on a terminal's error stream; nothing where there is none."""

from __future__ import annotations

import sys
import threading
import time

from kernel_runtime.timeline.text import plural, size_text

_EVERY_S = 0.2


class Progress:
    """Counts what travels. Thread safe."""

    def __init__(self, verb: str) -> None:
        """verb: ``sent``, ``fetched``."""
        self.objects = self.bytes = self.found = 0
        """Objects that travelled, their bytes as they travelled, and those that were there."""
        self._verb = verb
        self._lock = threading.Lock()
        self._shown = 0.0
        self._terminal = sys.stderr.isatty()

    def travelled(self, size: int) -> None:
        """An object of so many bytes has arrived."""
        with self._lock:
            self.objects += 1
            self.bytes += size
            self._show()

    def there(self) -> None:
        """An object was there already."""
        with self._lock:
            self.found += 1
            self._show()

    def _show(self) -> None:
        now = time.monotonic()
        if self._terminal and now - self._shown > _EVERY_S:
            self._shown = now
            print(f"\r\x1b[K{self.text()}", end="", file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Take the line away."""
        if self._terminal and self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def text(self) -> str:
        """``12 objects sent, 3.4 MB; 5 were there``."""
        done = f"{plural(self.objects, 'object')} {self._verb}, {size_text(self.bytes)}"
        return f"{done}; {self.found:,} were there" if self.found else done
