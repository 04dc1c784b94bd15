"""Small changes of a stored session's checkpoints: label, comment, pin.

The session must have been taken (``stored.take``): no kernel runs on it meanwhile.
"""

from __future__ import annotations

from jupyter_timetravel.offline.stored import Session
from kernel_runtime.timeline import Checkpoint


def changed(
    session: Session,
    checkpoint: Checkpoint,
    *,
    label: str | None = "",
    comment: str | None = None,
    pinned: bool | None = None,
) -> Checkpoint:
    """The checkpoint with another label (None takes it away; "": as it is), comment, pin.

    Raises BadRequest for what cannot be one, StoreError: nothing was changed.
    """
    made = session.timeline.replace(checkpoint.id, label=label, comment=comment, pinned=pinned)
    session.store.save(session.timeline.state, [made])
    return made
