"""What can be done with a session, whether its kernel runs or not.

The commands (``jupyter_timetravel.commands``) and results are those of docs/protocol.md, as the
kernel has them or as the store tells them.
"""

from __future__ import annotations

from typing import Any, Protocol

from jupyter_timetravel.commands import Command
from jupyter_timetravel.records import Result


class Access(Protocol):
    """One session."""

    running: bool
    """Whether its kernel runs, and is what answers."""

    @property
    def title(self) -> str:
        """How it is called in a sentence."""

    def about(self) -> Result:
        """``timeline``, ``notebook`` and whether a kernel has it (``running``)."""

    def ask(self, command: Command[Any]) -> Result:
        """The result of a command.

        Without a kernel, a restore is of the files and of where the next kernel begins, and "now"
        is the files alone. Raises NotRunning for what needs a kernel, and other
        TimeTravelErrors: then nothing was changed.
        """
