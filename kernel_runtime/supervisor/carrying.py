"""Which stored variables the present process could not load, and each checkpoint of it with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kernel_runtime.engines.dill.carrying import Unloaded, carried_in, carry, unloaded
from kernel_runtime.engines.dill.engine import Loaded
from kernel_runtime.errors import RestoreRefused

if TYPE_CHECKING:
    from kernel_runtime.store.namespaces import NamespaceStore
    from kernel_runtime.supervisor.session import Session
    from kernel_runtime.timeline.model import Checkpoint

NOT_LOADED: Final = "held as it was stored, and not loaded"


class Carrying:
    """Of one session. Until a name is used again, later checkpoints hold what is stored of it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._present: Unloaded | None = None
        self._at: dict[str, Unloaded] = {}
        """By checkpoint, of those that were made here."""

    def loaded(self, manifest: dict[str, Any], loaded: Loaded) -> list[str]:
        """The process was made from a manifest; what to tell of names that had been carried."""
        self._present = unloaded(manifest, loaded)
        before = carried_in(manifest)
        back = sorted(set(before.reasons) & set(loaded.names)) if before is not None else []
        return [f"loaded now, after checkpoints that only held it: {name}" for name in back]

    def nothing(self) -> None:
        """The process is a fresh one."""
        self._present = None

    async def woke(self, id: str) -> None:
        """The process is the one of a checkpoint."""
        self._present = self._at.get(id)
        if self._present is None and self._is_earlier(id):
            try:
                manifest = await self._session.durability.manifest_if_any(
                    self._session.timeline[id]
                )
            except RestoreRefused as error:  # the process is whole without
                self._session.log.warning("What it held and had not loaded is lost: %s", error)
            else:
                self._present = carried_in(manifest) if manifest is not None else None

    def _is_earlier(self, id: str) -> bool:
        """Whether an earlier kernel made it."""
        timeline = self._session.timeline
        return id in timeline and timeline[id].coordinate.epoch != self._session.epoch

    def took(self, checkpoint: Checkpoint) -> None:
        """A checkpoint of the process was made: what it has by itself is not carried any more."""
        if self._present is None:
            return
        self._present = self._present.without(checkpoint.variables)
        timeline = self._session.timeline
        self._at = {id: held for id, held in self._at.items() if id in timeline}
        if self._present is not None:
            self._at[checkpoint.id] = self._present

    def into(self, id: str, manifest: dict[str, Any], store: NamespaceStore) -> dict[str, Any]:
        """The manifest of a checkpoint with what it carries. Blocks. Raises StoreError."""
        held = self._at.get(id)
        return manifest if held is None else carry(manifest, held, store.missing(held.digests()))
