"""What can be wrong with a timeline that is exported or imported."""

from __future__ import annotations

from kernel_runtime.errors import TimeTravelError
from kernel_runtime.timeline.text import one_line


class ExportRefused(TimeTravelError):
    """A timeline could not be written into a file; there is no file, and the timeline is whole."""


class ImportRefused(TimeTravelError):
    """A file was not imported: the store is as it was, and nothing was written elsewhere."""

    def __init__(self, file: str, cause: str, member: str = "") -> None:
        where = f" at its member {one_line(member, 200)!r}" if member else ""
        super().__init__(
            f"{one_line(file, 200)} was not imported{where}: {cause}. The store is as it was, and "
            "nothing was written anywhere else. Ask whoever made the file for another copy, or do "
            "without it."
        )
        self.cause, self.member = cause, member
