"""Calls from the thread that pickles to the main one: some objects answer no other thread.

The main thread waits for the pickling one with ``serve``; where nobody serves, a call is made where
it is.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Final

POLL_S: Final = 0.02

_Answer = tuple[bool, Any]
_requests: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[_Answer]]] | None = None


def serve(worker: threading.Thread) -> None:
    """Start the worker and do what it asks for until it has ended. Called in the main thread."""
    global _requests
    requests = _requests = queue.SimpleQueue()
    try:
        worker.start()
        while worker.is_alive():
            try:
                function, answer = requests.get(timeout=POLL_S)
            except queue.Empty:
                continue
            try:
                answer.put((True, function()))
            except BaseException as error:
                answer.put((False, error))
    finally:
        _requests = None
    worker.join()


def call(function: Callable[[], Any]) -> Any:
    """What ``function`` gives or raises in the main thread."""
    requests = _requests
    if requests is None or threading.current_thread() is threading.main_thread():
        return function()
    answer: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
    requests.put((function, answer))
    is_result, value = answer.get()
    if not is_result:
        raise value
    return value
