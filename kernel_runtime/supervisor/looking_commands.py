"""The commands of docs/protocol.md for whoever looks at a timeline, as a sidebar does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel_runtime.errors import BadRequest
from kernel_runtime.supervisor.showing import VARIABLES_MOST
from kernel_runtime.timeline.names import Spec
from kernel_runtime.timeline.plain_notebook import notebook_of

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

_CHANGES_MOST = 200


class LookingCommands:
    """One coroutine each, its parameters are the command's arguments."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def do_changes(self, checkpoints: list[Spec]) -> dict[str, Any]:
        if len(checkpoints) > _CHANGES_MOST:
            raise BadRequest(f"Ask for {_CHANGES_MOST} checkpoints at a time. Nothing was done.")
        found = []
        for spec in checkpoints:
            checkpoint = self._session.timeline.resolve(spec)
            changes = await self._session.showing.changes(checkpoint)
            if changes is not None:
                found.append(changes)
        return {"changes": found}

    async def do_file(
        self, path: str, root: str | None = None, checkpoint: Spec | None = None
    ) -> dict[str, Any]:
        at = None if checkpoint is None else self._session.timeline.resolve(checkpoint)
        return await self._session.showing.file(at, path, root)

    async def do_show(self, checkpoint: Spec, names: list[str]) -> dict[str, Any]:
        _check_texts(names, "names")
        if len(names) > VARIABLES_MOST:
            raise BadRequest(f"Ask for {VARIABLES_MOST} variables at a time. Nothing was done.")
        at = self._session.timeline.resolve(checkpoint)
        return {"checkpoint": at.id, "shown": await self._session.showing.variables(at, names)}

    async def do_keep_document(self, cells: list[Any], documents: list[Any]) -> dict[str, Any]:
        return await self._session.documents.keep(cells, documents)

    async def do_document(self, checkpoint: Spec, known: list[str] | None = None) -> dict[str, Any]:
        _check_texts(known or [], "known")
        at = self._session.timeline.resolve(checkpoint)
        return await self._session.documents.read(at, known or [])

    async def do_notebook(self, until: Spec | None = None) -> dict[str, Any]:
        session = self._session
        end = session.timeline.resolve(until) if until is not None else None
        placed = session.cells.from_fresh(end)
        return {"notebook": notebook_of([one.record() for one in placed])}


def _check_texts(values: list[Any], what: str) -> None:
    if not all(isinstance(value, str) for value in values):
        raise BadRequest(f"{what} must be a list of texts. Nothing was done.")
