"""The workspace engine as the supervisor uses it: in one thread, one piece of work at a time."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kernel_runtime.engines.workspace.errors import WorkspaceError
from kernel_runtime.engines.workspace.model import (
    Change,
    LeftOut,
    RestorePlan,
    RestoreResult,
    Snapshot,
)
from kernel_runtime.engines.workspace.names import printable
from kernel_runtime.store.blobs import BlobStore
from kernel_runtime.store.paths import store_directory
from kernel_runtime.supervisor.config import Supervisor
from kernel_runtime.timeline.model import Capture, Note

if TYPE_CHECKING:
    from kernel_runtime.engines.workspace.engine import WorkspaceEngine

T = TypeVar("T")
_NOTES_SHOWN = 50


class Files:
    """Captures and restores of the workspace. Every method may be awaited from the event loop."""

    def __init__(self, config: Supervisor, cwd: str, log: logging.Logger) -> None:
        self._config = config
        self._log = log
        self.roots = [Path(cwd), *(Path(p).expanduser().absolute() for p in config.more_workspace)]
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="workspace")
        self._engine: WorkspaceEngine | None = None
        self._store: BlobStore | None = None
        self.problem = ""
        if not config.files:
            self.problem = "Files are not captured: Supervisor.files is off."
            return
        if config.is_isolated:
            return  # they are layered with the environment
        from kernel_runtime.engines.workspace.engine import WorkspaceEngine

        try:
            store = Path(config.store) if config.store else store_directory()
            self._store = BlobStore(store)
            document = os.environ.get("JPY_SESSION_NAME")
            self._engine = WorkspaceEngine(
                self.roots,
                self._store,
                journal_dir=store / "journal",
                document=Path(cwd, document) if document else None,
            )
        except (WorkspaceError, OSError) as error:
            self.problem = f"Files are not captured: {error}"

    async def _run(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, lambda: work(*args, **kwargs))

    @property
    def enabled(self) -> bool:
        """Whether files are captured at all."""
        return self._engine is not None

    async def prepare(self, say: Callable[[str], None]) -> None:
        """Look at how much there is before it is read for the first time.

        A directory that is too large (a home directory with everything in it) is not captured:
        say() tells the user so.
        """
        if self._engine is None:
            return
        estimate = await self._run(
            self._engine.estimate,
            max_files=self._config.files_most,
            max_bytes=self._config.bytes_most,
        )
        if estimate.complete:
            return
        roots = ", ".join(map(str, self.roots))
        self.problem = (
            f"Files are not captured: {roots} holds more than {self._config.files_most:,} files or "
            f"{self._config.bytes_most >> 30} GiB. Memory is. Put the notebook into a directory of "
            "its own, or raise Supervisor.files_most and Supervisor.bytes_most."
        )
        engine, self._engine = self._engine, None
        await self._run(engine.close)
        say(self.problem)

    async def recover(self) -> None:
        """Finish or undo a restore that a killed supervisor left half done."""
        if self._engine is not None:
            result = await self._run(self._engine.recover)
            if result is not None:
                self._log.warning("A restore that was cut short was %s.", result.outcome)

    async def capture(
        self, processes: Iterable[str], rules_of: str | None = None
    ) -> tuple[Snapshot | None, Capture | None]:
        """Take a snapshot; processes: /proc directories whose writable mappings are looked at.

        rules_of: the snapshot that is to be restored next: what it excludes is excluded here too.
        A failure is a failed capture, not an error: the process is still held.
        """
        if self._engine is None:
            return None, None
        try:
            snapshot = await self._run(self._capture, self._engine, list(processes), rules_of)
        except (WorkspaceError, OSError) as error:
            return None, Capture("filesystem", "workspace", "failed", error=str(error))
        return snapshot, _as_capture(snapshot)

    @staticmethod
    def _capture(engine: WorkspaceEngine, processes: list[str], rules_of: str | None) -> Snapshot:
        mapped: set[tuple[int, int]] = set()
        for proc in processes:
            mapped |= writable_mappings(proc)
        return engine.capture(dirty_files=mapped, rules_of=rules_of)

    async def flush(self) -> None:
        """Wait until what was captured is on the disk; only then may the database name it."""
        if self._store is not None:
            await self._run(self._store.flush)

    async def plan(self, snapshot_id: str) -> RestorePlan:
        """Check what a restore needs. Raises WorkspaceError."""
        assert self._engine is not None
        return await self._run(self._engine.plan_restore, snapshot_id)

    async def restore(self, plan: RestorePlan, safety: Snapshot | None) -> RestoreResult:
        """Carry a plan out. Raises WorkspaceError; then the files are as before."""
        assert self._engine is not None
        return await self._run(self._engine.restore, plan, foreign=safety)

    async def diff(self, a: str, b: str | None) -> list[Change]:
        """Return what changed from snapshot a to b (None: the present). Raises WorkspaceError."""
        assert self._engine is not None
        if b is None:
            # the engine's diff(a, None) tells what a restore of a would do: the other direction
            return list(await self._run(self._engine.current_changes, a))
        return list(await self._run(self._engine.diff, a, b))

    def as_json(self, change: Change) -> dict[str, Any]:
        """Return a change as docs/protocol.md has it."""
        return {
            "path": printable(change.path),
            "root": str(self.roots[change.root]),
            "kind": change.kind,
            "size_before": change.size_before,
            "size_after": change.size_after,
        }

    async def release(self, snapshot_ids: Iterable[str]) -> None:
        """No checkpoint names these snapshots any more."""
        gone = list(snapshot_ids)
        if self._engine is not None and gone:
            await self._run(self._engine.release, gone)

    async def close(self) -> None:
        """Stop watching; wait for the work under way."""
        if self._engine is not None:
            await self._run(self._engine.close)
        self._worker.shutdown()


def _as_capture(snapshot: Snapshot) -> Capture:
    notes = [_note(left) for left in snapshot.left_out[:_NOTES_SHOWN]]
    if len(snapshot.left_out) > _NOTES_SHOWN:
        notes.append(Note("files", f"{len(snapshot.left_out) - _NOTES_SHOWN} more", "left out"))
    if snapshot.excluded:
        notes.append(Note("files", f"{snapshot.excluded} paths", "excluded by rule"))
    return Capture(
        "filesystem",
        "workspace",
        "ready",
        bytes=snapshot.copied_bytes,
        ref=snapshot.id,
        not_captured=tuple(notes),
    )


def _note(left: LeftOut) -> Note:
    return Note("file", printable(left.path), left.reason)


def writable_mappings(proc: str) -> set[tuple[int, int]]:
    """Return (device, inode) of the files that a process has mapped shared and writable.

    Their bytes change without any change that stat(2) shows. proc(5), "maps".
    """
    found: set[tuple[int, int]] = set()
    if not sys.platform.startswith("linux"):
        return found
    try:
        with open(f"{proc}/maps", "rb") as f:
            for line in f:
                fields = line.split(None, 5)
                if fields[1][1:2] == b"w" and fields[1][3:4] == b"s" and fields[4] != b"0":
                    major, _, minor = fields[3].partition(b":")
                    found.add((os.makedev(int(major, 16), int(minor, 16)), int(fields[4])))
    except OSError:  # it ended meanwhile
        pass
    return found
