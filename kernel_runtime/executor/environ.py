"""Which environment variables differ from those that the process had before its first cell.

They travel with the summaries of variables (variables.py), as ``$NAME``: with a value that is shown
and a fingerprint by which two of them are compared. What looks secret is never shown, and is known
by a keyed digest whose key lives in this process alone.
"""

from __future__ import annotations

import os
import re
from hashlib import blake2b
from typing import Any, Final
from zlib import crc32

PREFIX: Final = "$"
HIDDEN: Final = "(not shown)"
LENGTH: Final = 60

_SECRET_NAME: Final = re.compile(
    r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|COOKIE|_PASS$|_PAT$", re.IGNORECASE
)
_SECRET_VALUE: Final = re.compile(r"://[^/\s@]*:[^/\s@]*@")
_KEY: Final = os.urandom(16)

Raw = dict[bytes, bytes]


class EnvironmentVariables:
    """Compares ``os.environ`` with what it was when it was first asked for."""

    def __init__(self) -> None:
        self._base: Raw | None = None
        self._last: Raw | None = None
        self._told: dict[str, dict[str, Any]] = {}

    def summary(self) -> dict[str, dict[str, Any]]:
        """The variables that were set, changed or removed. Runs no code of the user's."""
        now = _read()
        if now is None:
            return self._told
        if self._base is None:
            self._base = now
        if now != self._last:
            self._last = now
            self._told = self._differences(self._base, now)
        return dict(self._told)

    @staticmethod
    def _differences(base: Raw, now: Raw) -> dict[str, dict[str, Any]]:
        found = {}
        for key in base.keys() | now.keys():
            before, after = base.get(key), now.get(key)
            if before == after:
                continue
            name = key.decode("utf-8", "backslashreplace")
            found[PREFIX + name] = {
                "type": "environment variable",
                "size": None,
                "shape": None,
                "value": _shown(name, after),
                "base": _shown(name, before),
                "fingerprint": _fingerprint(name, after),
            }
        return found


def _read() -> Raw | None:
    """A copy of ``os.environ``; None where something else stands in its place."""
    environ = os.environ
    data = getattr(environ, "_data", None) if type(environ) is os._Environ else None
    return dict(data) if type(data) is dict else None


def _is_secret(name: str, text: str) -> bool:
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(text))


def _shown(name: str, value: bytes | None) -> str | None:
    if value is None:
        return None
    text = value.decode("utf-8", "backslashreplace")
    if _is_secret(name, text):
        return HIDDEN
    return text if len(text) <= LENGTH else text[: LENGTH - 1] + "…"


def _fingerprint(name: str, value: bytes | None) -> dict[str, Any]:
    if value is None:
        return {"full": "unset"}
    if _is_secret(name, value.decode("utf-8", "backslashreplace")):
        # another process has another key: then nothing is said about equality
        return {_KEY.hex()[:8]: blake2b(value, key=_KEY, digest_size=8).hexdigest()}
    return {"full": f"{len(value)}:{crc32(value)}"}
