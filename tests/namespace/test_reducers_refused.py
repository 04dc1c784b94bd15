"""What cannot be kept is refused with a reason of ours, also in subclasses."""

from __future__ import annotations

import asyncio
import bz2
import contextlib
import ctypes
import hashlib
import http.client
import io
import multiprocessing
import os
import select
import selectors
import smtplib
import socket
import sqlite3
import ssl
import subprocess
import sys
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from kernel_runtime.executor.namespace import registry

registry.load_reducers()


class MyThread(threading.Thread):
    pass


def generator() -> Iterator[int]:
    yield 1


async def steps() -> Any:
    yield 1


@contextlib.contextmanager
def managed() -> Iterator[None]:
    yield


MAKERS = {
    "generator": generator,
    "asynchronous generator": steps,
    "frame": sys._getframe,
    "context manager": managed,
    "ExitStack": contextlib.ExitStack,
    "thread": MyThread,
    "timer": lambda: threading.Timer(1, print),
    "socket": socket.socket,
    "TLS context": ssl.create_default_context,
    "HTTP connection": lambda: http.client.HTTPConnection("localhost"),
    "mail connection": smtplib.SMTP,
    "selector": selectors.DefaultSelector,
    "epoll": select.epoll,
    "child": lambda: subprocess.Popen(["true"]),
    "process": multiprocessing.Process,
    "lock of processes": multiprocessing.Lock,
    "queue of processes": multiprocessing.Queue,
    "value of processes": lambda: multiprocessing.Value("i"),
    "pipe of processes": lambda: multiprocessing.Pipe()[0],
    "event loop": asyncio.new_event_loop,
    "directory listing": lambda: os.scandir("."),
    "C library": lambda: ctypes.CDLL(None),
    "C pointer": lambda: ctypes.pointer(ctypes.c_int(3)),
    "compressor": zlib.compressobj,
    "decompressor": bz2.BZ2Decompressor,
    "digest": hashlib.sha256,
    "zip": lambda: zipfile.ZipFile(io.BytesIO(), "w"),
    "tar": lambda: tarfile.TarFile(fileobj=io.BytesIO(), mode="w"),
    "cursor": lambda: sqlite3.connect(":memory:").cursor(),
}


@pytest.mark.parametrize("name", MAKERS)
def test_refused(name: str) -> None:
    obj = MAKERS[name]()
    found = registry.find(type(obj))
    assert found is not None
    with pytest.raises(registry.NotKept, match="cannot be kept"):
        found.reduce(obj, None)
    for end in ("close", "wait", "cancel"):
        if hasattr(obj, end) and not isinstance(obj, (multiprocessing.Process, threading.Thread)):
            getattr(obj, end)()
            break
