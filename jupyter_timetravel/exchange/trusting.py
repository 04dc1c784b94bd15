"""A person says that an imported timeline may be restored: it is signed with the own key then."""

from __future__ import annotations

from dataclasses import replace

from kernel_runtime.store.database import Store, TimelineInfo
from kernel_runtime.store.namespaces import NamespaceStore
from kernel_runtime.timeline import Checkpoint


def sign_anew(store: Store, info: TimelineInfo) -> None:
    """Sign its checkpoints and the namespaces that they name. Cut short, it is still not trusted,
    and doing it again finishes it. Raises StoreError."""
    namespaces = NamespaceStore(store.directory)
    timeline = store.look_at(info.id)
    with namespaces.writing():
        changed = [_signed(namespaces, checkpoint) for checkpoint in timeline]
        namespaces.flush()
        store.save(timeline.state, changed)
        store.trust(info.id)


def _signed(namespaces: NamespaceStore, checkpoint: Checkpoint) -> Checkpoint:
    captures = tuple(
        replace(c, ref=namespaces.adopt(c.ref))
        if c.kind == "namespace" and c.state == "ready" and c.ref
        else c
        for c in checkpoint.captures
    )
    return replace(checkpoint, captures=captures)
