"""Errors of the overlay engine that users see. Each says what failed, what holds, what to do."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_runtime.engines.workspace.names import printable
from kernel_runtime.errors import TimeTravelError

_SHOWN = 5


class ApplyRefused(TimeTravelError):
    """Files of the environment were not copied to the host: something there would be lost."""

    def __init__(self, problems: Sequence[tuple[bytes, str]]) -> None:
        shown = "; ".join(f"{printable(path)}: {reason}" for path, reason in problems[:_SHOWN])
        more = f" (and {len(problems) - _SHOWN} more)" if len(problems) > _SHOWN else ""
        super().__init__(
            f"Nothing was copied to the host: {shown}{more}. Move what you want to keep out of "
            "the way, leave these paths out, or use force to replace what was changed there."
        )
        self.problems = tuple(problems)


class ApplyFailed(TimeTravelError):
    """Copying files of the environment to the host failed half way; each file is whole."""

    def __init__(self, path: bytes, cause: str, done: int) -> None:
        super().__init__(
            f"{printable(path)} could not be copied to the host: {cause}. {done} paths before it "
            "are done, no file is half written, and the environment is unchanged. Remove the "
            "cause and apply again: what is done is not done twice."
        )
        self.path = path
