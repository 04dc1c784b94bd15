"""What can go wrong with DMTCP's programs. Each message says what holds and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernel_runtime.errors import TimeTravelError


class DmtcpError(TimeTravelError):
    """DMTCP did not do what was asked of it."""


class DmtcpMissing(DmtcpError):
    """DMTCP is not installed, or not all of its programs are."""

    def __init__(self, program: str, cause: str = "it is not on PATH") -> None:
        super().__init__(
            f"DMTCP cannot be used: {program}: {cause}. Nothing was done. Install DMTCP 3 or newer "
            "(the package `dmtcp`, or https://github.com/dmtcp/dmtcp)."
        )
        self.program = program


class DmtcpTooOld(DmtcpError):
    """The DMTCP that is installed is older than version 3."""

    def __init__(self, program: Path, version: Sequence[int]) -> None:
        super().__init__(
            f"{program} is DMTCP {'.'.join(map(str, version))}; 3 or newer is needed. Nothing was "
            "done. Install a newer one, or put it earlier on PATH."
        )
        self.version = tuple(version)


class CoordinatorFailed(DmtcpError):
    """A coordinator could not be started."""

    def __init__(self, cause: str, mend: str = "Its own words are in coordinator.log") -> None:
        super().__init__(
            f"The DMTCP coordinator did not start: {cause}. Nothing was started. {mend}."
        )


class CoordinatorGone(DmtcpError):
    """There is no coordinator at that port any more."""

    def __init__(self, port: int) -> None:
        super().__init__(
            f"The DMTCP coordinator at port {port} does not answer: it has ended. The programs "
            "that ran under it have ended too (DMTCP ends them); images that it had completed are "
            "whole. Start it again with restart(), then restart the programs from an image."
        )
        self.port = port


class CommandFailed(DmtcpError):
    """The coordinator refused a command."""

    def __init__(self, command: str, said: str) -> None:
        super().__init__(f"DMTCP refused {command}: {said or 'it gave no reason'}.")
        self.command, self.said = command, said


class CommandTimeout(DmtcpError):
    """The coordinator did not carry a command out in time."""

    def __init__(self, command: str, timeout: float) -> None:
        super().__init__(
            f"DMTCP did not finish {command} within {timeout:g} s. The programs may be stopped in "
            "the middle of it, and the coordinator does not recover from that: restart() ends "
            "both, and images that were complete stay usable."
        )
        self.command, self.timeout = command, timeout


class CheckpointIncomplete(DmtcpError):
    """A checkpoint was made, but not of every process; it must not be restarted from."""

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(
            f"DMTCP said that the checkpoint is complete, but {found} of {expected} images are "
            "there. Do not restart from it; the programs run on, so make another one."
        )
        self.expected, self.found = expected, found


class ImageUnreadable(DmtcpError):
    """A file is not an image of DMTCP's, or is cut short."""

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(f"{path} is no usable DMTCP image: {cause}. Nothing was restarted.")
        self.path = path
