"""The notebook as it was: cells and outputs that a front end gives us to keep with a checkpoint.

The kernel does not know the document, the front end does. It sends a notebook after its checkpoint
was made, when it has time: cells that were sent before by their names, others whole. Nothing here
is on the way of a cell; writing is done by a thread.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kernel_runtime.errors import BadRequest, DocumentRefused
from kernel_runtime.later import dataclass
from kernel_runtime.store.documents import DocumentStore
from kernel_runtime.store.errors import StoreError
from kernel_runtime.timeline.model import Capture, Checkpoint

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

KIND: Final = "document"
NAME: Final = "cells"

CELLS_MOST: Final = 20_000
_DOCUMENTS_MOST: Final = 1000
_ROOM_AFTER: Final = 0.9
"""Part of the room that is left in use when the oldest had to go."""


@dataclass(frozen=True)
class _Sent:
    """One notebook of a request."""

    checkpoint: Checkpoint
    cells: list[tuple[int | str, bool]]
    """Each by its place among those sent whole, or its name; whether its outputs are trusted."""


class KeptDocuments:
    """Of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._store: DocumentStore | None = None
        self._counted = 0
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="documents")

    # Keeping

    async def keep(self, cells: list[Any], documents: list[Any]) -> dict[str, Any]:
        """Keep notebooks with their checkpoints; the first of a checkpoint stays.

        cells: sent whole. A document that names a cell which is not stored is not kept, and the
        name is told: send it whole. Raises BadRequest, DocumentRefused; what was kept before the
        failure stays.
        """
        if not all(isinstance(cell, dict) for cell in cells):
            raise BadRequest("Each of cells must be a cell of nbformat. Nothing was kept.")
        sent = [self._read_request(one, len(cells)) for one in documents[:_DOCUMENTS_MOST]]
        store = self._open()
        loop = asyncio.get_running_loop()
        kept: list[str] = []
        missing: set[str] = set()
        try:
            with store.writing():
                digests = await loop.run_in_executor(
                    self._worker, lambda: [store.put_cell(cell) for cell in cells]
                )
                for one in filter(None, sent):
                    kept += await self._keep(store, one, digests, missing)
                for id in kept:
                    await self._session.captures.published(id)
        except (StoreError, OSError) as error:
            raise DocumentRefused(
                f"The notebook as it is now could not be kept: {error} The session runs on."
            ) from error
        self._make_room()
        return {"kept": kept, "digests": digests, "missing": sorted(missing)}

    def _read_request(self, one: Any, whole: int) -> _Sent | None:
        """What is asked; None where the checkpoint is gone or has one. Raises BadRequest."""
        timeline = self._session.timeline
        try:
            id = one["checkpoint"]
            cells = [(item["cell"], bool(item.get("trusted", False))) for item in one["cells"]]
            for cell, _ in cells:
                if not isinstance(cell, str) and not (type(cell) is int and 0 <= cell < whole):
                    raise TypeError(f"{cell!r:.40} is no place among the cells and no name")
        except (KeyError, TypeError, AttributeError) as error:
            raise BadRequest(
                'A document must be {"checkpoint": id, "cells": [{"cell": place or digest}, …]} '
                f"({error!r}). Nothing was kept."
            ) from None
        if len(cells) > CELLS_MOST:
            raise BadRequest(
                f"A notebook of more than {CELLS_MOST:,} cells is not kept. Nothing was done."
            )
        if not isinstance(id, str) or id not in timeline:
            return None
        held = timeline[id].capture(KIND)
        return None if held is not None and held.state == "ready" else _Sent(timeline[id], cells)

    async def _keep(
        self, store: DocumentStore, sent: _Sent, digests: list[str], missing: set[str]
    ) -> list[str]:
        """The id of its checkpoint, or nothing if a cell is missing."""
        loop = asyncio.get_running_loop()
        before = self._counted
        unknown, ref = await loop.run_in_executor(self._worker, _write, store, sent, digests)
        missing |= unknown
        if ref is None:
            return []
        # what was written since the last one counts for this one
        self._counted = store.put_bytes
        capture = Capture(
            KIND,
            NAME,
            "ready",
            bytes=self._counted - before,
            ref=ref,
            details={"cells": len(sent.cells)},
        )
        self._session.captures.put(sent.checkpoint.id, capture)
        return [sent.checkpoint.id]

    def _make_room(self) -> None:
        """Let the oldest go where a timeline keeps more than it may."""
        session = self._session
        most = session.config.documents_most
        held = [
            (checkpoint, capture)
            for checkpoint in session.timeline
            if (capture := checkpoint.capture(KIND)) is not None and capture.state == "ready"
        ]
        size = sum(capture.bytes for _, capture in held)
        if size <= most:
            return
        # what somebody named goes last
        held.sort(key=lambda one: (one[0].is_kept, one[0].number))
        for checkpoint, capture in held[:-1]:
            if size <= most * _ROOM_AFTER:
                break
            size -= capture.bytes
            gone = replace(capture, state="evicted", ref=None, bytes=0, error="to make room")
            session.captures.put(checkpoint.id, gone)
        session.background(self.sweep())

    # Reading

    async def read(self, checkpoint: Checkpoint, known: list[str]) -> dict[str, Any]:
        """The cells of a notebook as it was, without those that the asker knows by name.

        Raises DocumentRefused. ``trusted`` is never true in what another user has made.
        """
        capture = checkpoint.capture(KIND)
        name = f"#{checkpoint.number}"
        if capture is None or capture.state != "ready" or capture.ref is None:
            why = (capture.error or capture.state) if capture else "no page has shown it then"
            raise DocumentRefused(
                f"The notebook as it was at {name} is not kept: {why}. Nothing was changed."
            )
        session = self._session
        authentic = True
        try:
            await session.persistence.authenticate(session.timeline, checkpoint)
        except StoreError:
            authentic = False
        try:
            store = self._open()
            cells = await asyncio.to_thread(_read, store, capture.ref, set(known), authentic)
        except (StoreError, OSError, ValueError, KeyError) as error:
            raise DocumentRefused(
                f"The notebook as it was at {name} cannot be read: {error} Nothing was changed."
            ) from error
        return {"checkpoint": checkpoint.id, "cells": cells}

    # The store

    def _open(self) -> DocumentStore:
        """Raises DocumentRefused where there is no store."""
        if self._store is None:
            persistence = self._session.persistence
            if persistence.directory is None:
                raise DocumentRefused(f"There is no store: {persistence.problem}")
            try:
                self._store = DocumentStore(persistence.directory)
            except StoreError as error:
                raise DocumentRefused(str(error)) from error
        return self._store

    async def sweep(self) -> None:
        """Delete what no checkpoint of any timeline needs any more. Never raises."""
        persistence = self._session.persistence
        if persistence.directory is None:
            return
        try:
            await persistence.written()
            await asyncio.to_thread(self._open().sweep, persistence.documents)
        except (StoreError, OSError, DocumentRefused) as error:
            self._session.log.warning("Notebooks that are not needed were not swept: %s", error)

    def stop(self) -> None:
        """Write no more."""
        self._worker.shutdown(wait=False, cancel_futures=True)


def _write(store: DocumentStore, sent: _Sent, digests: list[str]) -> tuple[set[str], str | None]:
    """In the worker: the names that are not stored, or the name of the whole."""
    names = [cell if isinstance(cell, str) else digests[cell] for cell, _ in sent.cells]
    unknown = store.missing({cell for cell, _ in sent.cells if isinstance(cell, str)})
    if unknown:
        return unknown, None
    ref = store.save(zip(names, (trusted for _, trusted in sent.cells)))
    store.flush()
    return set(), ref


def _read(store: DocumentStore, ref: str, known: set[str], authentic: bool) -> list[dict[str, Any]]:
    manifest, _ = store.look_at(ref)
    authentic = authentic and store.is_trusted(ref)
    return [
        {
            "digest": digest,
            "trusted": bool(trusted) and authentic,
            "cell": None if digest in known else store.cell(digest),
        }
        for digest, trusted in manifest["cells"]
    ]
