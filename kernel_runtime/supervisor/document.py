"""The notebook that a kernel was started for: whose timeline it is, and where it is by now."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from kernel_runtime.store.database import Store
from kernel_runtime.store.notebooks import Follower, look
from kernel_runtime.timeline.documents import Verdict
from kernel_runtime.timeline.text import one_line, plural

VARIABLE: Final = "JPY_SESSION_NAME"
"""What the server says about it; fixed for the life of the kernel, restarts included."""

_LOOK_S: Final = 30.0
"""Seconds between two readings of a notebook that stays where it is."""

_WIDTH: Final = 200


class Document:
    """One notebook. `keep` runs in the thread that writes the store; no cell waits for it."""

    def __init__(self, path: str, kernel_name: str, roots: Iterable[Path]) -> None:
        self.looks = look(path, roots)
        self.kernel_name = kernel_name
        self.notice = ""
        """What the user is to be told about whose history this is; "" for nothing."""
        self.comment = ""
        """Of the first checkpoint of a timeline that begins as a copy's."""
        self.on_move: Callable[[], None] = lambda: None
        self._roots = list(roots)
        self._follower = Follower(self.looks.path)
        self._next_look = 0.0

    @classmethod
    def of_this_kernel(
        cls, store: Store, kernel_name: str, roots: Iterable[Path]
    ) -> Document | None:
        """The one that the server named, by its present path; None if there is none."""
        path: str | None = os.environ.get(VARIABLE, "")
        if not path or not path.endswith(".ipynb"):
            return None
        if not os.path.exists(path):
            path = store.renamed(path, kernel_name)  # a restart after a rename: the old name
        return cls(path, kernel_name, roots) if path else None

    @property
    def path(self) -> str:
        """Where it is, as far as is known."""
        return self.looks.path

    def settle(self, store: Store) -> None:
        """File the timeline that it goes on with under its path. Raises StoreError."""
        verdict = store.decide(self.looks, self.kernel_name)
        self._tell(store, verdict)
        infos = {info.id: info for info in store.timelines()}
        if verdict.timeline is not None and (old := infos[verdict.timeline].looks) is not None:
            self.looks = old  # as it was filed just now: with what it was called before

    def _tell(self, store: Store, verdict: Verdict) -> None:
        other = verdict.other
        if other is None:
            return
        was = one_line(other.path or (other.looks.path if other.looks else ""), _WIDTH)
        held = store.look_at(other.timeline)
        count = plural(len(held), "checkpoint")
        adopt = f"`jupyter timetravel adopt {other.timeline[:12]} NOTEBOOK`"
        if verdict.outcome == "moved":
            self.notice = f"the history of {was} goes on here ({count}): the notebook was moved."
        elif verdict.outcome == "copied":
            at = f" at #{held.head.number}" if held.head is not None else ""
            self.comment = f"copied from {was}{at}"
            self.notice = (
                f"this notebook looks like a copy of {was}, which keeps its history ({count}). "
                "This one begins its own."
            )
        elif verdict.outcome == "replaced":
            self.notice = (
                f"another notebook was at {was} before; its history ({count}) was set aside and "
                f"this one begins its own. {adopt}, with no kernel running, takes it up here."
            )
        elif verdict.outcome == "returned":
            self.notice = (
                f"this is the notebook that was at {was} earlier: its history goes on. That of the "
                f"one which was here since ({count}) was set aside; {adopt} takes it up."
            )

    def keep(self, store: Store, timeline_id: str, *, now: bool = False) -> None:
        """Note where it is and what it looks like, at once if it has moved. Raises StoreError."""
        path = os.path.realpath(self._follower.where())
        moved = path != self.looks.path
        if not (moved or now) and time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_S
        present = look(path, self._roots)
        if present.file is None:
            return  # it is gone, or being replaced: what it looked like stays
        self.looks = present.after(self.looks)
        store.note_looks(timeline_id, self.looks)
        if moved:
            self.on_move()

    def close(self) -> None:
        """Let the file go."""
        self._follower.close()
