"""What a session has written outside of its workspace: looked at, copied to the host, thrown away.

All of it is in layers that the host does not see (engines/overlay). The host's directories are the
base of each view, so what differs between a view without layers and the present one is what the
host does not have.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_runtime.engines.overlay.applying import HOST_CHANGED, Done, copy_out
from kernel_runtime.engines.overlay.changes import Change, changes
from kernel_runtime.engines.overlay.engine import OverlayEngine
from kernel_runtime.engines.overlay.errors import ApplyRefused
from kernel_runtime.engines.overlay.stack import Stack
from kernel_runtime.engines.workspace.names import printable
from kernel_runtime.errors import (
    BadRequest,
    EnvironmentRefused,
    RestoreFailed,
    RestoreRefused,
    TimeTravelError,
)
from kernel_runtime.supervisor import faults
from kernel_runtime.supervisor.checkpoints import Taken
from kernel_runtime.supervisor.request import Request
from kernel_runtime.timeline.caches import is_cache
from kernel_runtime.timeline.model import Capture
from kernel_runtime.timeline.report import apply_text, reset_text

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

_MOST = 200_000
"""Files that are counted."""

_LISTED = 20_000
_GROUPS = 30
_NAMES = 4
_TELL_S = 5.0


class Outside:
    """The commands ``outside``, ``apply`` and ``reset`` of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._applied: dict[bytes, tuple[int, int]] = {}
        """What was copied to the host: inode and ctime there."""

    # -- looking ----------------------------------------------------------------------------

    async def listing(self, each: bool) -> dict[str, Any]:
        """What the host does not have, by directory, and each file if that is asked for."""
        engine = self._engine()
        async with self._session.lock:
            found = await asyncio.to_thread(_changes_outside, engine)
        grouped = _Groups()
        for root, change in found.changes:
            grouped.add(root, change)
        files = [
            {
                "path": printable(_absolute(root, change.path)),
                "kind": change.kind,
                "size": change.size_before if change.kind == "deleted" else change.size_after,
            }
            for root, change in found.changes
            if each and not change.is_directory
        ]
        return {
            "directories": grouped.rows(),
            "caches": grouped.caches,
            "files": files[:_LISTED],
            "complete": found.complete and len(files) <= _LISTED,
        }

    def _engine(self) -> OverlayEngine:
        environment = self._session.environment
        if environment.engine is None:
            raise EnvironmentRefused(
                "What cells write outside of the workspace reaches this machine at once, so there "
                f"is nothing to list, to copy or to reset. Nothing was done. {environment.problem}"
            )
        return environment.engine

    # -- copying ----------------------------------------------------------------------------

    async def apply(self, paths: Sequence[str], dry_run: bool, force: bool) -> dict[str, Any]:
        """Copy files and directories to the host, or tell what that would do.

        Raises EnvironmentRefused, ApplyRefused: then nothing was copied; ApplyFailed half way.
        """
        engine = self._engine()
        isolated = self._session.config.is_isolated
        if not paths and not isolated:
            raise BadRequest(
                "Name the files or directories to copy to this machine; %timetravel files lists "
                "them. Nothing was copied."
            )
        chosen = [_checked(path) for path in paths] or [
            os.fsencode(os.path.realpath(root)) for root in self._session.files.roots
        ]
        started = time.perf_counter()
        async with self._session.lock:
            result = await asyncio.to_thread(self._apply, engine, chosen, dry_run, force)
        result["took_ms"] = (time.perf_counter() - started) * 1e3
        result["text"] = apply_text(result)
        return result

    def _apply(
        self, engine: OverlayEngine, chosen: list[bytes], dry_run: bool, force: bool
    ) -> dict[str, Any]:
        found = _changes_outside(engine)
        wanted: dict[str, list[bytes]] = {}
        views = engine.views(engine.present())
        for path in chosen:
            root = self._root_of(engine, path)
            below = [
                change.path
                for its_root, change in found.changes
                if its_root == root and _is_within(_absolute(root, change.path), path)
            ]
            if not below and not os.path.lexists(path):
                with views[root] as view:
                    if view.lookup(os.path.relpath(path, os.fsencode(root))) is None:
                        raise EnvironmentRefused(
                            f"There is no {printable(path)}, here or on this machine. "
                            "Nothing was copied."
                        )
            wanted.setdefault(root, []).extend(below)
        wanted = {root: paths for root, paths in wanted.items() if paths}
        forced = {}
        for root, below in wanted.items():
            with engine.views(engine.present())[root] as view:
                forced[root], planned = self._plan(view, below, root, engine.state.since_ns, force)
            wanted[root] = [done.path for done in planned]
        done: list[tuple[str, Done]] = []
        bytes_ = 0
        for root, below in wanted.items():
            with engine.views(engine.present())[root] as view:
                since = None if forced[root] else engine.state.since_ns
                steps = copy_out(view, below, Path(root), since_ns=since, dry_run=dry_run)
                bytes_ += sum(_size(view, one) for one in steps)
            done += [(root, one) for one in steps]
            if not dry_run:
                self._remember(_absolute(root, one.path) for one in steps)
        return {
            "done": [
                {
                    "path": printable(_absolute(root, one.path)),
                    "action": one.action,
                    "note": one.note,
                }
                for root, one in done
            ],
            "bytes": bytes_,
            "dry_run": dry_run,
        }

    def _plan(
        self, view: Stack, below: list[bytes], root: str, since_ns: int, force: bool
    ) -> tuple[bool, list[Done]]:
        """What copying would do, and whether to overwrite what the host has changed.

        What was changed there by copying before is no reason to refuse.
        """
        since = None if force else since_ns
        try:
            return force, copy_out(view, below, Path(root), since_ns=since, dry_run=True)
        except ApplyRefused as refused:
            for path, reason in refused.problems:
                if not reason.endswith(HOST_CHANGED) or not self._is_ours(_absolute(root, path)):
                    raise
        return True, copy_out(view, below, Path(root), force=True, dry_run=True)

    def _remember(self, paths: Iterable[bytes]) -> None:
        for path in paths:
            with contextlib.suppress(OSError):
                found = os.lstat(path)
                self._applied[path] = (found.st_ino, found.st_ctime_ns)

    def _is_ours(self, path: bytes) -> bool:
        try:
            found = os.lstat(path)
        except OSError:
            return True
        return self._applied.get(path) == (found.st_ino, found.st_ctime_ns)

    def _root_of(self, engine: OverlayEngine, path: bytes) -> str:
        root = engine.plan.root_of(os.fsdecode(path))
        passed = any(_is_within(path, os.fsencode(one)) for one in engine.plan.passes)
        if root is None or root.path not in engine.state.uppers or passed:
            raise EnvironmentRefused(
                f"{printable(path)} is this machine's own inside too: what cells write there is "
                "there already. Nothing was copied."
            )
        return root.path

    # -- throwing away ----------------------------------------------------------------------

    async def reset(self, request: Request | None, process: bool) -> dict[str, Any]:
        """Go back to the host's own files; with process also to a fresh process.

        Raises EnvironmentRefused and RestoreRefused (nothing was done) or RestoreFailed (all is as
        before). The caller holds the queue, or the request's cell waits or has ended.
        """
        session = self._session
        engine = self._engine()
        async with session.lock:
            started = time.perf_counter()
            clean = Capture(
                "filesystem",
                "overlay",
                "ready",
                details={"stacks": {}, "root_layer": self._clean_root(engine)},
            )
            safety = await session.checkpoints.take(
                "safety", request=request, comment="before %timetravel reset", move=process
            )
            told = asyncio.ensure_future(self._difference(safety, clean))
            try:
                if safety.environment is None:
                    raise RestoreRefused("The present environment could not be held.")
                if process:
                    await session.restores.stop_processes()
                    await session.environment.restore(clean)
                    faults.point("environment reset")
                    await session.launcher.start()
                else:
                    faults.point("environment reset")
                    await session.restores.environment_live(clean)
            except Exception as error:
                problem = await self._back(safety) if process else ""
                raise RestoreFailed(
                    f"The environment could not be reset: {error} You are where you were.{problem}"
                ) from error
            if process:
                assert session.executor is not None
                session.reconcile_comms(session.executor, request)
                await session.checkpoints.take("restart", request=None)
            else:
                await session.checkpoints.after_part("in a clean environment", None)
            await asyncio.wait([told], timeout=_TELL_S)
            found = told.result() if told.done() else {}
            result: dict[str, Any] = {
                "safety": session.timeline.record(safety.checkpoint),
                "process": process,
                "packages": found.get("packages", []),
                "files": found.get("workspace", []),
                "environment": found.get("files", []),
                "environment_complete": bool(found) and found["complete"],
                "took_ms": (time.perf_counter() - started) * 1e3,
            }
            result["text"] = reset_text(result)
            return result

    async def _difference(self, safety: Taken, clean: Capture) -> dict[str, Any]:
        if safety.environment is None:
            return {}
        try:
            return await self._session.environment_changes.compare(
                safety.environment, clean, quick=True
            )
        except OSError as error:
            self._session.log.warning("What the reset changes is not known: %s", error)
            return {}

    def _clean_root(self, engine: OverlayEngine) -> str:
        """What lay directly in / when the session began, where that is known."""
        for checkpoint in self._session.timeline:
            capture = checkpoint.capture("filesystem", engine="overlay")
            layer = str(capture.details.get("root_layer", "")) if capture is not None else ""
            if layer and checkpoint.reason == "start" and engine.directory.exists(layer):
                return layer
        return engine.state.root_layer

    async def _back(self, safety: Taken) -> str:
        """After a failure: the environment and the process as they were. Says what is not."""
        session = self._session
        with contextlib.suppress(TimeTravelError, OSError):
            await session.restores.stop_processes()
        try:
            if safety.environment is not None:
                await session.environment.restore(safety.environment)
            if safety.frozen is None:
                raise RestoreFailed("the process had not been held")
            session.take_up(await session.restores.wake(safety.frozen))
        except (TimeTravelError, OSError) as error:
            await session.launcher.start_or_rescue()
            return f" But the process could not be woken ({error}): this is a fresh one."
        return ""


class _Found:
    def __init__(self) -> None:
        self.changes: list[tuple[str, Change]] = []
        self.complete = True


def _changes_outside(engine: OverlayEngine) -> _Found:
    """What the present environment holds and the host does not. Raises OSError."""
    found = _Found()
    present = engine.present()
    clean, views = engine.views({}), engine.views(present)
    for root in sorted(present):
        if root not in views:
            continue
        with clean[root] as before, views[root] as after:
            its = changes(before, after, _MOST - len(found.changes), compared_bytes=0)
        found.changes += [(root, change) for change in its if change.path]
        found.complete = found.complete and its.complete
    return found


class _Groups:
    """Counts files by directory: a new directory as a whole, else by the one that holds them."""

    def __init__(self) -> None:
        self.caches = {"files": 0, "bytes": 0}
        self._tops: dict[bytes, bytes] = {}
        self._rows: dict[bytes, list[Any]] = {}

    def add(self, root: str, change: Change) -> None:
        """Count one change; a directory comes before what is in it."""
        path = _absolute(root, change.path)
        parent = os.path.dirname(path)
        if change.is_directory:
            if change.kind in ("created", "deleted"):
                self._tops[path] = self._tops.get(parent, path)
            return
        size = (change.size_before if change.kind == "deleted" else change.size_after) or 0
        if is_cache(os.fsdecode(path)):
            self.caches["files"] += 1
            self.caches["bytes"] += 0 if change.kind == "deleted" else size
            return
        row = self._rows.setdefault(self._tops.get(parent, parent), [0, 0, 0, []])
        if change.kind == "deleted":
            row[2] += 1
        else:
            row[0] += 1
            row[1] += size
        row[3].append(path)

    def rows(self) -> list[dict[str, Any]]:
        """At most so many, sorted; the deepest ones are told with the directory above them."""
        rows = dict(self._rows)
        while len(rows) > _GROUPS:
            deepest = max(rows, key=lambda path: (path.count(b"/"), path))
            above = os.path.dirname(deepest)
            files, size, deleted, paths = rows.pop(deepest)
            row = rows.setdefault(above, [0, 0, 0, []])
            rows[above] = [row[0] + files, row[1] + size, row[2] + deleted, [*row[3], *paths]]
        return [
            {
                "path": printable(path),
                "files": files,
                "bytes": size,
                "deleted": deleted,
                "names": [printable(os.path.relpath(one, path)) for one in paths]
                if len(paths) <= _NAMES
                else [],
            }
            for path, (files, size, deleted, paths) in sorted(rows.items())
        ]


def _absolute(root: str, path: bytes) -> bytes:
    return os.fsencode(root).rstrip(b"/") + b"/" + path


def _is_within(path: bytes, directory: bytes) -> bool:
    return path == directory or path.startswith(directory.rstrip(b"/") + b"/")


def _checked(path: str) -> bytes:
    """A path without symlinks on the way to it. Raises BadRequest."""
    if not os.path.isabs(path) or "\0" in path:
        raise BadRequest(f"{path!r} is no absolute path. Nothing was copied.")
    directory, name = os.path.split(os.path.normpath(path))
    return os.fsencode(os.path.join(os.path.realpath(directory), name))


def _size(view: Stack, done: Done) -> int:
    found = view.lookup(done.path) if done.action in ("created", "replaced") else None
    return found.stat.st_size if found is not None and not found.is_directory else 0
