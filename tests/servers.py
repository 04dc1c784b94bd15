"""Jupyter servers that tests start."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

_CONNECTED_S = 10


def address(process: subprocess.Popen[bytes], folder: Path, log: Path) -> str:
    """Where a server answers, once it does: it writes the address down before it listens."""
    info = folder / f"jpserver-{process.pid}.json"
    while True:
        if info.exists() and (text := info.read_text()):
            url = str(json.loads(text)["url"])
            place = urlsplit(url)
            assert place.hostname is not None and place.port is not None
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection((place.hostname, place.port), _CONNECTED_S).close()
                return url
        try:
            process.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            continue
        pytest.fail(log.read_text())
