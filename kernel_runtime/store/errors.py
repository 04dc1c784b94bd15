"""What can be wrong with the store. A change that raised one of these did not happen at all."""

from __future__ import annotations

from pathlib import Path

from kernel_runtime.errors import TimeTravelError


class StoreError(TimeTravelError):
    """The store cannot be opened, read or written."""


class EncryptionProblem(StoreError):
    """The store is encrypted, or shall be, and that fails: nothing of it was read or written."""


class TimelineInUse(StoreError):
    """Another kernel has the timeline of this notebook."""

    def __init__(self, path: str, holder: str) -> None:
        self.holder = holder
        """In brackets, after a blank: which process; empty if nobody knows."""
        super().__init__(
            f"The timeline of {path} is in use by another kernel{holder}. Nothing was changed; "
            "this kernel can have a timeline of its own, or shut the other one down and restart."
        )


class LocksSilent(StoreError):
    """The filesystem of the store does not answer who has a file locked."""

    def __init__(self, directory: Path, filesystem: str, waited_s: float) -> None:
        super().__init__(
            f"The store {directory} lies on a filesystem ({filesystem}) whose locks have not "
            f"answered for {waited_s:.0f} seconds: its lock server is down or unreachable. Nothing "
            "was read or written. Set JUPYTER_TIMETRAVEL_STORE to a directory on a local disk, or "
            "have the lock server mended, and start again."
        )


class DatabaseDamaged(StoreError):
    """The file that lists the checkpoints holds what nobody wrote into it."""

    def __init__(self, path: Path, cause: BaseException | str) -> None:
        super().__init__(
            f"The database {path} is damaged: {cause}. Nothing was changed, and the files and "
            "namespaces that it lists are intact beside it, but cannot be found without it. "
            "`jupyter timetravel check` says what can still be read. Put a copy of the file in its "
            "place if you have one; else move it away, and a new store begins."
        )


def refused(path: Path, cause: BaseException | str, mend: str = "") -> StoreError:
    """A StoreError for a path: what failed, what still works, what to do."""
    return StoreError(
        f"The store {path} cannot be used: {cause}. The session runs on; what was not stored is "
        "lost when the kernel ends. "
        + (mend or "See that the disk is not full and that the directory is yours and writable.")
    )
