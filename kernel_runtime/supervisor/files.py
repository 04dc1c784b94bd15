"""The workspace engine as the supervisor uses it: in one thread, one piece of work at a time."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kernel_runtime.engines.workspace.errors import WorkspaceCaptureFailed, WorkspaceError
from kernel_runtime.engines.workspace.names import printable
from kernel_runtime.engines.workspace.unfinished import may_be_unfinished
from kernel_runtime.store import encryption
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.paths import store_directory
from kernel_runtime.supervisor.config import Supervisor
from kernel_runtime.supervisor.document import Document
from kernel_runtime.supervisor.mappings import writable_mappings
from kernel_runtime.supervisor.own_layer import OwnLayer
from kernel_runtime.supervisor.silent import silent_mounts
from kernel_runtime.timeline.model import Capture, Note

if TYPE_CHECKING:
    from kernel_runtime.engines.workspace.engine import WorkspaceEngine
    from kernel_runtime.engines.workspace.model import (
        Change,
        LeftOut,
        Part,
        RestorePlan,
        RestoreResult,
        Snapshot,
    )
    from kernel_runtime.store.blobs import BlobStore

T = TypeVar("T")
_NOTES_SHOWN = 50
_LONG_S = 2.0
"""Seconds of work after which it is asked whether a mount does not answer."""


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
        self._stuck: asyncio.Future[Any] | None = None
        self._silent: list[str] = []
        self._document: Document | None = None
        self._is_imported = False
        self._own_layer: OwnLayer | None = None
        self.processes: Callable[[], Iterable[str]] = tuple
        """Directories below /proc: these and their descendants may write to mapped files."""
        self.begin_work: Callable[[], None] = lambda: None
        """Is told that files are about to be written."""
        self._at_rest: Callable[[int], bool] = lambda _: False
        self._is_open = False
        if not config.files:
            self.problem = "Files are not captured: Supervisor.files is off."

    def open(self) -> None:
        """Make the engine, where files are to be captured and it is not there yet. It takes long
        to import, and a session's first process needs it only where a restore was cut short."""
        if self._is_open:
            return
        self._is_open = True
        config = self._config
        # those of an isolated workspace are layered with the environment
        if not config.files or config.is_isolated:
            return
        from kernel_runtime.engines.workspace.engine import WorkspaceEngine
        from kernel_runtime.engines.workspace.rules import DEFAULT_EXCLUDES
        from kernel_runtime.store.blobs import BlobStore

        try:
            store = self._directory()
            encryption.at_start(store, config.encryption)
            self._store = BlobStore(store)
            document = os.environ.get("JPY_SESSION_NAME")
            self._silent = [p for p in silent_mounts(self.roots) if Path(p) not in self.roots]
            self._engine = WorkspaceEngine(
                self.roots,
                self._store,
                journal_dir=store / "journal",
                exclude=(
                    *DEFAULT_EXCLUDES,
                    *config.workspace_exclude,
                    *(_pattern(path, self.roots) for path in self._silent),
                ),
                document=self.roots[0] / document if document else None,
                mapped_files=self._mapped,
            )
        except (WorkspaceError, StoreError, OSError) as error:
            self.problem = f"Files are not captured: {error}"
            return
        self._engine.at_rest = self._at_rest
        self._tell_engine()

    def _directory(self) -> Path:
        return Path(self._config.store) if self._config.store else store_directory()

    def leave_others(self, at_rest: Callable[[int], bool]) -> None:
        """What was made while the session was at rest (nanoseconds since the epoch) is another
        program's: a restore leaves it."""
        self._at_rest = at_rest
        if self._engine is not None:
            self._engine.at_rest = at_rest

    def follow(self, document: Document | None, *, imported: bool) -> None:
        """The notebook is this one by now; imported: its timeline was another machine's."""
        self._document, self._is_imported = document, imported
        self._tell_engine()

    def _tell_engine(self) -> None:
        document = self._document
        former = document.looks.names_before() if document is not None else []
        if self._engine is not None and document is not None and former:
            self._engine.document = Path(document.path)
            self._engine.former = [Path(path) for path in former]

    async def _run(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Raises WorkspaceCaptureFailed if a mount in the workspace does not answer any more."""
        if self._stuck is not None and not self._stuck.done():
            raise WorkspaceCaptureFailed("a mount in it still does not answer")
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._worker, lambda: work(*args, **kwargs))
        # whoever waits may be cancelled: then nobody asks what came of it
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        while not (await asyncio.wait([future], timeout=_LONG_S))[0]:
            silent = set(await asyncio.to_thread(silent_mounts, self.roots)) - {*self._silent}
            if silent:
                self._stuck = future
                raise WorkspaceCaptureFailed(f"{', '.join(silent)} does not answer")
        return await future

    @property
    def enabled(self) -> bool:
        """Whether files are captured at all."""
        self.open()
        return self._engine is not None

    async def prepare(self, say: Callable[[str], None]) -> None:
        """Look at how much there is before it is read for the first time.

        A directory that is too large (a home directory with everything in it) is not captured:
        say() tells the user so.
        """
        if self._engine is None:
            return
        for path in self._silent:
            say(f"{path} does not answer. It is left out of the workspace: not rolled back.")
        try:
            estimate = await self._run(
                self._engine.estimate,
                max_files=self._config.files_most,
                max_bytes=self._config.bytes_most,
            )
        except WorkspaceError:
            return  # the capture fails likewise, and says so
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
        with contextlib.suppress(OSError, StoreError):
            if not may_be_unfinished(self._directory() / "journal"):
                return
        self.open()
        if self._engine is not None:
            result = await self._run(self._engine.recover)
            if result is not None:
                self._log.warning("A restore that was cut short was %s.", result.outcome)

    def was_committed(self) -> bool:
        """Whether a restore that a killed supervisor left has replaced all files: `recover` will
        finish it and not undo it. Raises OSError."""
        self.open()
        return self._engine is not None and self._engine.was_committed()

    def _mapped(self) -> set[tuple[int, int]]:
        return {file for proc in self.processes() for file in writable_mappings(proc)}

    async def watch_own_layer(self, apart: Iterable[Path]) -> None:
        """From now on each capture names what cells change in the container around it. apart: what
        is no matter of the container's, beside the workspace."""
        if self._engine is not None:
            self._own_layer = await asyncio.to_thread(OwnLayer, [*self.roots, *apart])

    async def capture(self, rules_of: str | None = None) -> tuple[Snapshot | None, Capture | None]:
        """Take a snapshot.

        rules_of: the snapshot that is to be restored next: what it excludes is excluded here too.
        A failure is a failed capture, not an error: the process is still held.
        """
        if self._engine is None:
            return None, None
        try:
            snapshot = await self._run(self._engine.capture, rules_of=rules_of)
        except (WorkspaceError, OSError) as error:
            return None, Capture("filesystem", "workspace", "failed", error=str(error))
        around = await asyncio.to_thread(self._own_layer.changes) if self._own_layer else ()
        return snapshot, _as_capture(snapshot, around)

    async def flush(self) -> None:
        """Wait until what was captured is on the disk; only then may the database name it."""
        if self._store is not None:
            await self._run(self._store.flush)

    async def plan(
        self, snapshot_id: str, part: Part | None = None, *, allow_missing: bool = False
    ) -> RestorePlan:
        """Check what a restore needs, of all files or of a part. Raises WorkspaceError.

        allow_missing: files whose content the store has lost are left as they are.
        """
        assert self._engine is not None
        return await self._run(self._plan, self._engine, snapshot_id, part, allow_missing)

    def _plan(
        self, engine: WorkspaceEngine, snapshot_id: str, part: Part | None, allow_missing: bool
    ) -> RestorePlan:
        from kernel_runtime.engines.workspace.model import ALL_FILES
        from kernel_runtime.engines.workspace.places import refuse_elsewhere

        if not self._is_imported:
            looks = self._document.looks if self._document is not None else None
            refuse_elsewhere(engine, snapshot_id, looks)
        return engine.plan_restore(snapshot_id, part=part or ALL_FILES, allow_missing=allow_missing)

    async def restore(
        self,
        plan: RestorePlan,
        safety: Snapshot | None,
        committed: Callable[[], None] = lambda: None,
    ) -> RestoreResult:
        """Carry a plan out. Raises WorkspaceError; then the files are as before.

        committed: is called, in the event loop, when it will not be undone any more.
        """
        assert self._engine is not None
        self.begin_work()
        loop = asyncio.get_running_loop()

        async def in_loop() -> None:
            committed()

        def tell() -> None:
            asyncio.run_coroutine_threadsafe(in_loop(), loop).result()

        return await self._run(self._restore, self._engine, plan, safety, tell)

    def _restore(
        self,
        engine: WorkspaceEngine,
        plan: RestorePlan,
        safety: Snapshot | None,
        committed: Callable[[], None],
    ) -> RestoreResult:
        result = engine.restore(plan, foreign=safety, committed=committed)
        for change in plan.changes:
            # Python takes a cache for its source's if their size and whole seconds agree
            where, _, name = change.path.rpartition(b"/")
            caches = where + b"/__pycache__" if where else b"__pycache__"
            if name.endswith(b".py") and engine.leaves_out(change.root, caches):
                _remove_caches(self.roots[change.root] / os.fsdecode(caches), os.fsdecode(name))
        return result

    async def diff(self, a: str, b: str | None) -> list[Change]:
        """Return what changed from snapshot a to b (None: the present). Raises WorkspaceError."""
        assert self._engine is not None
        if b is None:
            # the engine's diff(a, None) tells what a restore of a would do: the other direction
            return list(await self._run(self._engine.current_changes, a))
        return list(await self._run(self._engine.diff, a, b))

    async def read(self, ref: str, path: bytes, root: int, most: int) -> tuple[bytes, int]:
        """The first bytes of a file of a snapshot, and its size.

        Raises FileNotFoundError, WorkspaceError, OSError.
        """
        assert self._engine is not None
        return await self._run(self._engine.read_beginning, ref, path, root, most)

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
            with contextlib.suppress(WorkspaceError):
                await self._run(self._engine.release, gone)

    async def sweep(self) -> None:
        """Free what released snapshots have held; else it waits for some more of them."""
        if self._engine is not None:
            with contextlib.suppress(WorkspaceError, OSError):
                await self._run(self._engine.collect_garbage)

    async def close(self) -> None:
        """Stop watching; wait for the work under way, unless a mount does not answer."""
        if self._engine is not None:
            with contextlib.suppress(WorkspaceError):
                await self._run(self._engine.close)
        self._worker.shutdown(wait=self._stuck is None or self._stuck.done())


def _remove_caches(directory: Path, source: str) -> None:
    for path in directory.glob(f"{glob.escape(source.removesuffix('.py'))}.*.pyc"):
        with contextlib.suppress(OSError):
            path.unlink()


def _pattern(path: str, roots: list[Path]) -> str:
    root = next(root for root in roots if Path(path).is_relative_to(root))
    return f"/{Path(path).relative_to(root)}"


def _as_capture(snapshot: Snapshot, around: Iterable[Note]) -> Capture:
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
        not_captured=(*notes, *around),
    )


def _note(left: LeftOut) -> Note:
    return Note("file", printable(left.path), left.reason)
