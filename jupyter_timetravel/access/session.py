"""What can be done with a session, whether its kernel runs or not.

Each method answers with the result that docs/protocol.md gives the command of that name, as it
came or as the store tells it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from jupyter_timetravel.commands import Only
from kernel_runtime.timeline.names import Spec

Result = dict[str, Any]


class Access(Protocol):
    """One session. Every method raises TimeTravelError: then nothing was changed."""

    running: bool
    """Whether its kernel runs, and is what answers."""

    @property
    def title(self) -> str:
        """How it is called in a sentence."""

    def status(self) -> Result:
        """Where the session stands. Raises NotRunning."""

    def list(self, include_auto: bool = True, history: Spec | None = None) -> Result:
        """Checkpoints, with ``timeline``, ``notebook`` and ``running``."""

    def show(self, checkpoint: Spec) -> Result:
        """One of them, as ``get`` does."""

    def diff(self, a: Spec, b: Spec | None = None) -> Result:
        """What happened from one to another, or to now; in the store, now is the files alone."""

    def checkpoint(self, comment: str = "", label: str | None = None, pin: bool = False) -> Result:
        """Make one. Raises NotRunning."""

    def restore(
        self,
        checkpoint: Spec = -1,
        only: Only | None = None,
        dry_run: bool = False,
        undo: bool = False,
        force: bool = False,
        compensate: bool = False,
        partial: bool = False,
        reseed: bool = False,
    ) -> Result:
        """Go back; without a kernel the files, and where the next kernel begins."""

    def bring(self, checkpoint: Spec, names: Sequence[str]) -> Result:
        """Bring single variables into the present. Raises NotRunning."""

    def replay(
        self,
        checkpoint: Spec,
        skip: Sequence[Spec] = (),
        until: Spec | None = None,
        stop_on_difference: bool = False,
        dry_run: bool = False,
    ) -> Result:
        """Go back and run the cells after it again. Raises NotRunning."""

    def verify(self, checkpoint: Spec | None = None) -> Result:
        """Load what is on the disk for real."""

    def delete(self, checkpoint: Spec) -> Result:
        """Delete one."""
