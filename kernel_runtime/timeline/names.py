"""How a user names a checkpoint: number, relative number, id, label, comment.

``NameIndex`` finds each of them in constant time (an id prefix: linear), so that naming
does not get slower as a timeline grows.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Final

from kernel_runtime.errors import BadRequest
from kernel_runtime.timeline.model import Checkpoint, check_text

SHORTEST_PREFIX: Final = 6
NUMBER: Final = re.compile(r"[#+]?([0-9]{1,18})", re.ASCII)
RELATIVE: Final = re.compile(r"-([0-9]{1,18})", re.ASCII)
ID_PREFIX: Final = re.compile(rf"[0-9a-f]{{{SHORTEST_PREFIX},32}}")

LONGEST_LABEL: Final = 1000
"""Characters. It is typed to restore by."""

Spec = int | str
"""A user's name for a checkpoint; docs/protocol.md says what is understood."""


def check_label(label: str) -> str:
    """The label without surrounding blanks, or BadRequest if it could not be found again."""
    label = check_text(label, "label").strip()
    if len(label) > LONGEST_LABEL:
        raise BadRequest(
            f"A label has {LONGEST_LABEL} characters at most. Nothing was done; put longer text "
            "into the comment."
        )
    if not label or NUMBER.fullmatch(label) or RELATIVE.fullmatch(label):
        raise BadRequest(
            f"{label!r} cannot be a label: it is empty or reads like a number. Nothing was done; "
            "choose a label with a letter in it."
        )
    return label


class NameIndex:
    """Numbers, labels and comments of the checkpoints of one timeline."""

    def __init__(self) -> None:
        self._by_number: dict[int, str] = {}
        self._by_label: dict[str, set[int]] = {}
        self._by_comment: dict[str, set[int]] = {}

    def add(self, checkpoint: Checkpoint) -> None:
        """Make it known under its present names."""
        self._by_number[checkpoint.number] = checkpoint.id
        for index, text in self._texts(checkpoint):
            index.setdefault(text, set()).add(checkpoint.number)

    def discard(self, checkpoint: Checkpoint) -> None:
        """Forget the names that ``add`` made known for this very value."""
        del self._by_number[checkpoint.number]
        for index, text in self._texts(checkpoint):
            numbers = index[text]
            numbers.discard(checkpoint.number)
            if not numbers:
                del index[text]

    def _texts(self, checkpoint: Checkpoint) -> list[tuple[dict[str, set[int]], str]]:
        named = [
            (self._by_label, checkpoint.label or ""),
            (self._by_comment, checkpoint.comment.strip()),
        ]
        return [(index, text) for index, text in named if text]

    def by_number(self, number: int) -> str | None:
        """The id of checkpoint ``number``."""
        return self._by_number.get(number)

    def is_label(self, text: str) -> bool:
        """Whether a checkpoint has that label."""
        return text in self._by_label

    def bearers(self, text: str) -> list[str]:
        """Ids of those with that label, or if none has it that comment; the newest first."""
        numbers = self._by_label.get(text) or self._by_comment.get(text) or ()
        return [self._by_number[number] for number in sorted(numbers, reverse=True)]

    def suggest(self, spec: Spec) -> str:
        """A sentence that names what the user may have meant; empty if nothing is near."""
        if not self._by_number:
            return "There are none yet."
        text = str(spec).strip()
        wanted = NUMBER.fullmatch(text)
        if isinstance(spec, int) or wanted:
            number = int(wanted[1]) if wanted else 0
            near = sorted(sorted(self._by_number, key=lambda n: (abs(n - number), -n))[:3])
            return f"The nearest are {', '.join(f'#{n}' for n in near)}."
        # Long pasted comments would make the comparison slow and the sentence useless.
        names = [n for n in (*self._by_label, *self._by_comment) if len(n) <= 200]
        close = difflib.get_close_matches(text[:200], names[-2000:], n=3)
        return f"Did you mean {' or '.join(repr(name) for name in close)}?" if close else ""


def matching_prefix(ids: Iterable[str], text: str) -> list[str]:
    """The ids that begin with ``text``, if it is long enough to be a prefix at all."""
    prefix = text.lower()
    if not ID_PREFIX.fullmatch(prefix):
        return []
    return [id for id in ids if id.startswith(prefix)]
