"""What a transfer has moved so far."""

from __future__ import annotations

from jupyter_timetravel.meter import Meter
from kernel_runtime.timeline.text import plural, size_text


class Progress(Meter):
    """Counts what travels, and what need not. Thread safe."""

    def __init__(self, verb: str) -> None:
        """verb: ``sent``, ``fetched``."""
        super().__init__()
        self.objects = self.bytes = self.found = 0
        """Objects that travelled, their bytes as they travelled, and those that were there."""
        self._verb = verb

    def travelled(self, size: int) -> None:
        """An object of so many bytes has arrived."""
        with self._lock:
            self.objects += 1
            self.bytes += size

    def there(self) -> None:
        """An object was there already."""
        with self._lock:
            self.found += 1

    def moved(self) -> str:
        """``12 objects sent, 3.4 MB; 5 were there``."""
        with self._lock:
            objects, size, found = self.objects, self.bytes, self.found
        done = f"{plural(objects, 'object')} {self._verb}, {size_text(size)}"
        return f"{done}; {found:,} were there" if found else done

    def text(self) -> str:
        """How far it is; before that is known, what has moved."""
        how_far = super().text()
        return f"{how_far}, {size_text(self.bytes)} {self._verb}" if how_far else self.moved()
