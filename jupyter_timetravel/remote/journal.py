"""What this store has put into one remote, and with which mark: so it need not be read again.

``<store>/remotes/<16 hex digits of the URL>``: lines of name, size and mark, each written once the
remote had said that the object is there. Losing it costs time alone: what is not in it and is found
in the remote is read and compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Collection
from pathlib import Path

from jupyter_timetravel.remote.bucket import Entry
from kernel_runtime.store.paths import private_directory


class Journal:
    """That of one store and URL. Thread safe; several processes may write at once."""

    def __init__(self, store: Path, url: str) -> None:
        """Raises StoreError, OSError."""
        private_directory(store / "remotes")
        name = hashlib.blake2b(url.rstrip("/").encode(), digest_size=8).hexdigest()
        self._path = store / "remotes" / name
        self._known: dict[str, tuple[int, str]] = {}
        self._lock = threading.Lock()
        with contextlib.suppress(FileNotFoundError):
            text = self._path.read_text("utf-8", "replace")
            for line in text[: text.rfind("\n") + 1].splitlines():
                name, _, rest = line.partition("\t")
                size, _, mark = rest.partition("\t")
                if size.isdigit() and mark:
                    self._known[name] = int(size), mark
        flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o600)

    def has(self, entry: Entry) -> bool:
        """Whether an object is, as far as the remote tells, just what was put there."""
        return entry.mark is not None and self._known.get(entry.name) == (entry.size, entry.mark)

    def note(self, name: str, size: int, mark: str | None) -> None:
        """An object was put, or read and found to be good."""
        if mark is None or "\n" in mark:
            return
        with self._lock:
            self._known[name] = size, mark
            os.write(self._fd, f"{name}\t{size}\t{mark}\n".encode())

    def shorten(self, there: Collection[str]) -> None:
        """Leave out what is not there any more."""
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with self._lock, contextlib.suppress(OSError):
            lines = [
                f"{name}\t{size}\t{mark}\n"
                for name, (size, mark) in self._known.items()
                if name in there
            ]
            temporary.write_text("".join(lines), "utf-8")
            temporary.chmod(0o600)
            os.replace(temporary, self._path)

    def close(self) -> None:
        """The second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
