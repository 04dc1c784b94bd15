"""The timeline's way into the store: written by one worker thread, never waited for by a cell."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernel_runtime.engines.overlay.directory import EnvironmentDirectory
from kernel_runtime.store import encryption, filesystem_type, resume
from kernel_runtime.store.database import Store, open_store
from kernel_runtime.store.errors import StoreError, TimelineInUse
from kernel_runtime.store.paths import key_directory, private_directory, store_directory
from kernel_runtime.supervisor.config import Supervisor
from kernel_runtime.supervisor.document import Document
from kernel_runtime.timeline.model import Checkpoint
from kernel_runtime.timeline.tree import Deleted, Timeline, TimelineState


class Persistence:
    """One kernel's timeline in the store; without a store the timeline lives in memory alone."""

    def __init__(self, config: Supervisor, log: logging.Logger) -> None:
        self._config = config
        self._log = log
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._store: Store | None = None
        self._told: set[str] = set()
        self._waiting: dict[str, Checkpoint] = {}
        self._gone: set[str] = set()
        self.unpublished: list[str] = []
        """Checkpoints that the store does not have yet, as what they name is not on the disk."""
        self.problem = ""
        self.directory: Path | None = None
        """Of the store; None if it cannot be used."""
        self._timeline_id = ""
        self.has_document = False
        """Whether the timeline is a notebook's, so that it outlives the kernel."""
        self.document: Document | None = None
        """The notebook that the kernel was started for, whether or not the timeline is its."""
        self.is_imported = False
        """Whether the directories that its snapshots name may be another machine's."""
        self._roots: list[Path] = []

    def open(self, epoch: str, roots: Iterable[Path] = ()) -> Timeline:
        """Return the notebook's timeline, or a new one. roots: of the workspace."""
        self._roots = list(roots)
        directory = Path(self._config.store) if self._config.store else store_directory()
        try:
            encryption.at_start(directory, self._config.encryption)
            self._store = open_store(directory)
            with suppress(StoreError):
                private_directory(key_directory())  # there before it can be hidden from cells
            timeline = self._load(self._store, epoch)
            self.directory = self._store.directory
            self._timeline_id = timeline.id
        except (StoreError, OSError) as error:
            self.problem = f"The timeline is not stored: {error}"
            self._log.warning(self.problem)
            self._store = None
            timeline = Timeline(TimelineState("memory"))
        if not len(timeline):
            # the state before the first cell is #0, so that the first cell's is #1
            timeline = Timeline(replace(timeline.state, next_number=0))
        return timeline

    def _load(self, store: Store, epoch: str) -> Timeline:
        name = self._config.kernel_name
        document = self.document = Document.of_this_kernel(store, name, self._roots)
        try:
            if document is not None:
                document.settle(store)
            timeline = store.load_timeline(
                document.path if document is not None else None, name, epoch=epoch
            )
            self.has_document = document is not None
        except TimelineInUse as error:
            # a second kernel on the same notebook gets a timeline of its own
            self.problem = (
                f"Another kernel{error.holder} has this notebook's timeline. This one has a "
                "timeline of its own, which ends with it, and both work on the same files: shut "
                "one of the two down."
            )
            self._log.warning("%s", self.problem)
            return store.load_timeline(None, name, epoch=epoch)
        if document is not None:
            document.keep(store, timeline.id)
            info = next(info for info in store.timelines() if info.id == timeline.id)
            self.is_imported = info.origin is not None
        return timeline

    def status(self) -> dict[str, Any]:
        """Where the store is and how it is locked, for the command ``status``."""
        if self._store is None or self.directory is None:
            return {"directory": None}
        return {
            "directory": str(self.directory),
            "filesystem": filesystem_type.name(self.directory),
            "journal": self._store.journal,
            "is_network": filesystem_type.is_network(self.directory),
        }

    def save(self, timeline: Timeline, checkpoint: Checkpoint) -> None:
        """Write a new or changed checkpoint."""
        self._submit(self._state(timeline), [checkpoint])

    def save_state(self, timeline: Timeline) -> None:
        """Write where the session is."""
        self._submit(self._state(timeline), [])

    def delete(self, timeline: Timeline, gone: Deleted) -> None:
        """Write that a checkpoint is gone."""
        rehung = [one for one in gone.rehung if one.id not in self.unpublished]
        self._submit(self._state(timeline), rehung, [gone.checkpoint.id])

    def _state(self, timeline: Timeline) -> TimelineState:
        """Where the session is, as far as the store has its checkpoints."""
        state = timeline.state
        head, safety = state.head, state.last_safety
        while head is not None and head in self.unpublished:
            head = timeline[head].parent
        if safety in self.unpublished:
            safety = None
        return replace(state, head=head, last_safety=safety)

    def _submit(
        self, state: TimelineState, checkpoints: Iterable[Checkpoint], deleted: Iterable[str] = ()
    ) -> None:
        if self._store is None:
            return
        future = self._worker.submit(
            self._write, self._store, state, list(checkpoints), list(deleted)
        )
        future.add_done_callback(self._report)

    def _write(
        self, store: Store, state: TimelineState, checkpoints: list[Checkpoint], deleted: list[str]
    ) -> None:
        """In the worker. What could not be written (a full disk) is written with the next one."""
        self._waiting.update((checkpoint.id, checkpoint) for checkpoint in checkpoints)
        self._gone.update(deleted)
        for id in deleted:
            self._waiting.pop(id, None)
        waiting, gone = list(self._waiting.values()), list(self._gone)
        try:
            store.save(state, waiting, deleted_ids=gone)
        except StoreError:
            raise
        except BaseException:
            self._waiting.clear()  # it is these that cannot be written
            raise
        self._waiting.clear()
        self._gone.clear()
        if self.document is not None and self.has_document:
            self.document.keep(store, state.id)

    def _report(self, future: Future[None]) -> None:
        error = future.exception()
        if error is None:
            if self.problem in self._told:
                self.problem = ""
            self._told.clear()
        elif (problem := f"The timeline is not stored: {error}") not in self._told:
            self._told.add(problem)
            self.problem = problem
            self._log.error(problem)

    @property
    def is_encrypted(self) -> bool:
        """Whether what is stored is sealed."""
        return self.directory is not None and encryption.is_encrypted(self.directory)

    def secrets(self) -> list[Path]:
        """Files that open the store, which cells must not read."""
        file = encryption.key_file(self.directory) if self.directory is not None else None
        return [file] if file is not None else []

    def take_resume(self) -> str | None:
        """The checkpoint that this kernel is to begin with, where somebody said so offline."""
        if self.directory is None:
            return None
        return resume.take(self.directory, self._timeline_id)

    async def sweep(self) -> None:
        """Delete what kernels without a notebook, which were killed, have left. Never raises."""
        if self._store is not None:
            store = self._store
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._worker, lambda: self._sweep(store))

    def _sweep(self, store: Store) -> None:
        try:
            store.purge()
            known = {timeline.id for timeline in store.timelines()}
            environments = store.directory / "environments"
            for path in environments.iterdir() if environments.is_dir() else ():
                if path.name not in known:
                    EnvironmentDirectory(path).remove()
        except (StoreError, OSError) as error:
            self._log.warning("What killed kernels have left was not removed: %s", error)

    async def written(self) -> None:
        """Wait until what was given to be written is."""
        if self._store is not None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._worker, lambda: None)

    async def names_snapshot(self, ref: str) -> bool:
        """Say whether any checkpoint in the store, of any timeline, names a workspace snapshot."""
        if self._store is None:
            return False
        store = self._store
        loop = asyncio.get_running_loop()
        # in the worker: after the writes that were submitted before
        return await loop.run_in_executor(self._worker, lambda: ref in _snapshots(store))

    async def authenticate(self, timeline: Timeline, checkpoint: Checkpoint) -> None:
        """See that what a checkpoint names on the disk is this user's. Raises StoreError."""
        if self._store is None:
            raise StoreError("The store is closed.")
        # in the worker, after the writes that were submitted before: those are the checkpoint
        # as it is now, not as it was when the caller looked
        await asyncio.get_running_loop().run_in_executor(
            self._worker, self._store.authenticate, timeline.id, timeline[checkpoint.id]
        )

    def namespaces(self) -> set[str]:
        """The manifests that some checkpoint of the store names. In any thread.

        Raises StoreError where that cannot be known.
        """
        return self._named("namespace", "dill")

    def images(self, engine: str) -> set[str]:
        """The images that an engine has written, likewise."""
        return self._named("process", engine)

    def documents(self) -> set[str]:
        """The notebooks as they were, likewise."""
        return self._named("document", "cells")

    def dmtcp_images(self) -> set[str]:
        """The images that DMTCP wrote, likewise."""
        return self._named("process", "dmtcp")

    def _named(self, kind: str, engine: str) -> set[str]:
        if self._store is None:
            raise StoreError("The store is closed.")
        return self._store.references(kind, engine)

    def close(self) -> set[str]:
        """Write what waits; forget timelines without a notebook, which nobody could find again.

        Returns the workspace snapshots that those alone named.
        """
        self._worker.shutdown()
        released: set[str] = set()
        if self._store is not None:
            store, self._store = self._store, None
            if self.document is not None and self.has_document:
                self._keep_at_the_end(store, self.document)
            store.close()
            fresh = open_store(store.directory)
            try:
                gone = {
                    c.ref
                    for purged in fresh.purge()
                    for c in purged.captures
                    if c.ref and c.kind == "filesystem"
                }
                released = gone - _snapshots(fresh)
            finally:
                fresh.close()
        return released

    def _keep_at_the_end(self, store: Store, document: Document) -> None:
        try:
            document.keep(store, self._timeline_id, now=True)
        except StoreError as error:
            self._log.warning("Where the notebook is was not noted: %s", error)
        document.close()


def _snapshots(store: Store) -> set[str]:
    return store.references("filesystem", "workspace") | store.references(
        "filesystem", "kept-aside"
    )
