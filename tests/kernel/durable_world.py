"""What tests of durable checkpoints share: waiting for one, and the end of everything."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

_PACKAGE = Path(__file__).resolve().parents[2] / "kernel_runtime"


def namespace(record: dict[str, Any]) -> dict[str, Any]:
    """The namespace capture of a record, or an empty one."""
    return next((c for c in record["captures"] if c["kind"] == "namespace"), {"state": None})


def durable(notebook: Any, number: int) -> dict[str, Any]:
    """The namespace capture of a checkpoint, once it is written."""
    end = time.monotonic() + 110  # written at low priority
    while True:
        record = notebook.command("get", checkpoint=number)["checkpoint"]
        if namespace(record)["state"] in ("ready", "failed"):
            return namespace(record)
        assert time.monotonic() < end, record
        time.sleep(0.05)


def image(notebook: Any, number: int, engine: str = "image") -> dict[str, Any]:
    """What an engine has written of a checkpoint's process, once it is there."""
    end = time.monotonic() + 110
    while True:
        record = notebook.command("get", checkpoint=number)["checkpoint"]
        found = [c for c in record["captures"] if c["engine"] == engine]
        if found and found[0]["state"] in ("ready", "failed"):
            return found[0]
        assert time.monotonic() < end, record
        time.sleep(0.05)


def stats(top: Path) -> list[os.stat_result]:
    """Of all files below a directory in which a kernel makes and deletes some meanwhile."""
    found = []
    for parent, _, names in os.walk(top):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found.append(os.lstat(os.path.join(parent, name)))
    return found


def changed_package(where: Path, *changes: tuple[str, str, str]) -> Path:
    """A copy of the package that runs the kernel; what PYTHONPATH is to have of it.

    changes: in which file which text is another one.
    """
    package = where / "kernel_runtime"
    shutil.copytree(_PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for file, text, another in changes:
        source = (package / file).read_text()
        assert text in source
        (package / file).write_text(source.replace(text, another))
    return where


def damage(paths: Iterable[Path]) -> None:
    """One bit of each file."""
    for path in list(paths):
        data = bytearray(path.read_bytes())
        if data:
            data[len(data) // 2] ^= 1
            path.write_bytes(data)


def kill(notebook: Any) -> None:
    """The supervisor and all that it started end at once, as when the machine goes down."""
    family = psutil.Process(notebook.pid).children(recursive=True)
    os.kill(notebook.pid, signal.SIGKILL)
    notebook.manager.shutdown_kernel(now=True)
    psutil.wait_procs(family, timeout=60)  # they end with it, a moment later


def timeline(notebook: Any, words: str = "") -> str:
    """What %timeline shows."""
    shown = notebook.run(f"%timeline {words}").of_type("display_data")[0]
    return str(shown["content"]["data"]["text/plain"])
