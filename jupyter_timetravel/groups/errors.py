"""What a request for a group can end with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from kernel_runtime.errors import TimeTravelError

Reason = Literal["dead", "not answering", "busy", "held", "no process", "refused", "not stored"]


class MemberFailed(TimeTravelError):
    """One member of a group cannot do its part: dead, busy, not answering, no room, refused."""

    def __init__(self, member: str, reason: Reason, text: str) -> None:
        super().__init__(f"{member}: {reason}: {text}")
        self.member = member
        self.reason = reason
        self.text = text


class GroupFailed(TimeTravelError):
    """A group was not captured or not restored, since a member cannot do its part.

    ``problems``: of each such member; a client of a server has the message alone.
    """

    problems: tuple[MemberFailed, ...] = ()

    def __init__(self, what: str, problems: Sequence[MemberFailed], after: str) -> None:
        why = "; ".join(str(one).rstrip(".") for one in problems)
        super().__init__(f"{what}: {why}. {after}")
        self.problems = tuple(problems)
