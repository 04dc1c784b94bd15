"""The environment's part of the sandbox's init: captures, restores and merges on request.

    {"op": "environment", "id": n, …the plan}          mount everything
    {"op": "capture", "id": n, "executor": p, "keep": [pids], "root_layer": "…", "by_copy": false}
        + [descriptor]
    {"op": "restore", "id": n, "stacks": {…}, "root_layer": "…"}
    {"op": "refresh", "id": n}                    see what the host has changed beneath
    {"op": "merge", "id": n, "layers": [newest first]}      in a process of its own
    {"op": "merged", "id": n, "root": "…", "old": [layers], "new": layer}

The descriptor of a capture is one end of a socket to the executor (native/timetravel.h, hold_fd):
the capture is made when the executor says that it has stopped and copied itself, and the executor
goes on when it is done. If its end is closed instead, the capture is made all the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernel_runtime.engines.overlay import faults, held
from kernel_runtime.engines.overlay.entries import remove
from kernel_runtime.engines.overlay.merge import merge
from kernel_runtime.engines.overlay.mounts import Switched, describe, new_layer_id
from kernel_runtime.engines.overlay.runs import replace_run
from kernel_runtime.engines.overlay.setup import Environment
from kernel_runtime.later import dataclass

_HOLD_S = 5.0
"""Seconds that a stopped executor is waited for; it goes on by itself after as many."""
# struct tt_held and the head of struct tt_switched of native/timetravel.h
_HELD = struct.Struct("=Ii")
_SWITCHED = struct.Struct("=II")


@dataclass
class _Hold:
    """A capture that waits for the executor to stop."""

    request: dict[str, Any]
    socket: socket.socket


class EnvironmentOperations:
    """Carries out the operations above for an init."""

    def __init__(
        self, answer: Callable[[dict[str, Any]], None], processes: Callable[[], list[int]]
    ) -> None:
        self._answer = answer
        self._processes = processes
        self._environment: Environment | None = None
        self._holds: dict[int, _Hold] = {}
        self._workers: dict[int, tuple[int, int]] = {}  # report descriptor: pid, request

    # -- what init asks --------------------------------------------------------------------

    def watched(self) -> list[int]:
        """Descriptors that `ready` wants to hear of."""
        return [*self._holds, *self._workers]

    def worker_pids(self) -> set[int]:
        """Processes that merge: not the session's."""
        return {pid for pid, _ in self._workers.values()}

    def ready(self, fd: int) -> None:
        """A watched descriptor has something to read."""
        if fd in self._holds:
            self._held(self._holds.pop(fd))
        elif fd in self._workers:
            self._worker_ended(fd)

    def idle(self) -> None:
        """Whatever was put off: called when requests are answered."""
        if self._environment is not None:
            self._environment.mounts.relax()

    # -- operations ------------------------------------------------------------------------

    def op_environment(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        environment = Environment(request)
        self._environment = environment
        root_layer = request["root_layer"]
        root = environment.root_directory
        if root is not None:
            if root_layer and not root.start(root_layer):
                root.restore(root_layer, self._root_layer(root_layer))
            root_layer = self._capture_root(root_layer) or root_layer
        return {
            "problems": environment.problems,
            "uppers": self._uppers(),
            "root_layer": root_layer,
        }

    def op_capture(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any] | None:
        if not fds:
            return self._capture(request, None)
        link = socket.socket(fileno=os.dup(fds[0]))
        self._holds[link.fileno()] = _Hold(request, link)
        return None

    def op_restore(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any] | None:
        if not fds:
            return self._restore(request, None)
        link = socket.socket(fileno=os.dup(fds[0]))
        self._holds[link.fileno()] = _Hold(request, link)
        return None

    def _restore(self, request: dict[str, Any], link: socket.socket | None) -> dict[str, Any]:
        """link: to an executor that lives on. Without one nobody but frozen processes may live."""
        if link is None:
            self._mount_stacks(request)
            # what the ended processes had held can go
            self._there().mounts.tidy(request["stacks"])
            return {"uppers": self._uppers()}
        _, stopped = self._stop_others(request, request["executor"])
        try:
            mounts = self._there().mounts
            before = {path: list(root.pinned) for path, root in mounts.roots.items()}
            self._mount_stacks(request)
            covered = [
                id for path, ids in before.items() if mounts.roots[path].pinned != ids for id in ids
            ]
            self._reopen(link, covered)
            mounts.tidy(request["stacks"])
            _send(link, b"go")
        finally:
            held.go_on(stopped)
        return {"uppers": self._uppers()}

    def _others(self, request: dict[str, Any], executor: int | None) -> list[int]:
        keep = {*request["keep"], *self.worker_pids(), executor}
        return [pid for pid in self._processes() if pid not in keep]

    def _stop_others(
        self, request: dict[str, Any], executor: int | None
    ) -> tuple[list[int], list[int]]:
        """Stop them; return their pids, and those that must be continued."""
        others: list[int] = []
        stopped: list[int] = []
        # until there are no new ones: a process may start another before it is stopped
        while new := [pid for pid in self._others(request, executor) if pid not in others]:
            others += new
            stopped += held.stop(new)
        return others, stopped

    def _mount_stacks(self, request: dict[str, Any]) -> None:
        environment = self._there()
        mounts = environment.mounts
        stacks = {r: list(s) for r, s in request["stacks"].items() if r in mounts.roots}
        before = {path: (list(mounts.roots[path].stack)) for path in stacks}
        mounts.restore(stacks)
        faults.point("init: restored all")
        root = environment.root_directory
        wanted = request["root_layer"]
        if root is not None and wanted and not root.is_at(wanted):
            try:
                root.restore(wanted, self._root_layer(wanted))
            except OSError:
                mounts.restore(before)
                raise

    def op_refresh(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        self._there().mounts.refresh()
        return {}

    def op_merge(self, request: dict[str, Any], fds: list[int]) -> None:
        mounts = self._there().mounts
        report_r, report_w = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            _merge(mounts, request, report_w)
        os.close(report_w)
        self._workers[report_r] = (pid, request["id"])

    def op_merged(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        root = self._there().mounts.roots[request["root"]]
        root.stack = replace_run(root.stack, request["old"], request["new"])
        return {}

    # -- inside ----------------------------------------------------------------------------

    def _there(self) -> Environment:
        if self._environment is None:
            raise OSError(2, "there is no environment")
        return self._environment

    def _uppers(self) -> dict[str, str]:
        return {path: root.upper for path, root in self._there().mounts.roots.items()}

    def _root_layer(self, layer: str) -> str:
        # not by its path, which is hidden by now
        return f"/proc/self/fd/{self._there().mounts.layers}/{layer}/files"

    def _held(self, hold: _Hold) -> None:
        """The executor has stopped (or its end was closed): capture, let it go on, answer."""
        with hold.socket:
            hold.socket.settimeout(_HOLD_S)
            stopped = _receive(hold.socket)
            request = hold.request
            if len(stopped) == _HELD.size:
                # the newest frozen process, which the supervisor does not know yet
                request["keep"].append(_HELD.unpack(stopped)[1])
            try:
                how = self._capture if request["op"] == "capture" else self._restore
                answer = how(request, hold.socket if stopped else None)
            except Exception as error:  # init must live on
                answer = {"error": getattr(error, "errno", None) or 5, "text": str(error)}
        self._answer({"re": hold.request["id"], **answer})

    def _capture(self, request: dict[str, Any], link: socket.socket | None) -> dict[str, Any]:
        """link: to an executor that is stopped and opens its files again when told."""
        environment = self._there()
        mounts = environment.mounts
        begin = time.monotonic()
        changed = mounts.changed()
        root_layer = self._capture_root(request["root_layer"])
        if not changed:
            if link is not None:
                _send(link, _SWITCHED.pack(_SWITCHED.size, 0))
            return {"switched": {}, "uppers": {}, "root_layer": root_layer}
        executor = request["executor"] if link is not None else None
        others, stopped = self._stop_others(request, executor)
        try:
            faults.point("init: stopped")
            covered = [id for root in changed for id in root.pinned]
            by_copy = request["by_copy"]
            switched: dict[str, Switched] = mounts.capture(
                changed, others, executor, by_copy=by_copy
            )
            present = {root.pinned[-1] for root in changed}
            if link is not None:
                self._reopen(link, [id for id in covered if id not in present])
            mounts.tidy(
                path for path, one in switched.items() if not (one.held_by or one.error or by_copy)
            )
            faults.point("init: tidied")
            if link is not None:
                _send(link, b"go")
        finally:
            held.go_on(stopped)
        return {
            "switched": describe(switched),
            "uppers": self._uppers(),
            "root_layer": root_layer,
            "took_ms": (time.monotonic() - begin) * 1e3,
        }

    def _reopen(self, link: socket.socket, covered: Sequence[int]) -> None:
        packet = _SWITCHED.pack(_SWITCHED.size, len(covered))
        packet += struct.pack(f"={len(covered)}i", *covered)
        if _send(link, packet) and covered:
            _receive(link)

    def _capture_root(self, newest: str) -> str:
        """Return the layer that was made of what lies directly in /, or "" if that is as before."""
        root = self._there().root_directory
        if root is None or root.is_at(newest):
            return ""
        layer = new_layer_id()
        try:
            root.capture(layer, self._root_layer(layer))
        except OSError:
            with contextlib.suppress(OSError):
                remove(os.fsencode(os.path.dirname(self._root_layer(layer))))
            raise
        return layer

    def _worker_ended(self, fd: int) -> None:
        pid, id = self._workers.pop(fd)
        with open(fd, "rb") as report:
            text = report.read()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        self._answer({"re": id, **(json.loads(text) if text else _CUT_SHORT)})


_CUT_SHORT = {"error": 4, "text": "the merge was cut short"}


def _merge(mounts: Any, request: dict[str, Any], report: int) -> None:
    """In a process of its own: merge layers into a new one. Never returns."""
    answer: dict[str, Any]
    try:
        os.nice(10)
        os.fchdir(mounts.layers)
        id = new_layer_id()
        os.mkdir(id, 0o700)
        merge(
            [Path(f"{layer}/files") for layer in request["layers"]],
            Path(f"{id}/files"),
            mounts.markers,
        )
        answer = {"layer": id}
    except BaseException as error:
        answer = {"error": getattr(error, "errno", None) or 5, "text": str(error)}
    try:
        os.write(report, json.dumps(answer).encode())
    finally:
        os._exit(0)


def _send(link: socket.socket, data: bytes) -> bool:
    try:
        link.send(data)
        return True
    except OSError:
        return False


def _receive(link: socket.socket) -> bytes:
    try:
        return link.recv(4096)
    except OSError:
        return b""
