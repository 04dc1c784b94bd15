"""What is to be taken out, and how to tell that something holds it.

A text is looked for as it may lie in a file, a pickle or an array: UTF-8, UTF-16 and UTF-32, and as
JSON and Python write it between quotes. What is compressed, encrypted or in base64 *within* a
value or a file is not recognised: nothing is unpacked but what the store itself has packed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from kernel_runtime.errors import BadRequest

REDACTED: Final = "[redacted]"
SHORTEST: Final = 6
"""Characters of a text that can be looked for: a shorter one is in everything."""
_PART: Final = 5
"""Characters of its beginning by which a text is recognised where something was cut off."""


@dataclass(frozen=True)
class Needle:
    """variables: names. files: absolute paths. texts: secrets; never printed."""

    variables: frozenset[str] = frozenset()
    files: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    patterns: tuple[bytes, ...] = field(init=False)
    """The texts as bytes, longest first."""

    def __post_init__(self) -> None:
        for text in self.texts:
            if len(text) < SHORTEST:
                raise BadRequest(
                    f"A text of fewer than {SHORTEST} characters is in too much. Nothing was done; "
                    "give all of the secret."
                )
        found = {form for text in self.texts for form in _forms(text)}
        object.__setattr__(self, "patterns", tuple(sorted(found, key=len, reverse=True)))

    # -- bytes --------------------------------------------------------------------------------

    def is_in(self, pieces: Iterable[bytes]) -> bool:
        """Whether a text lies in these bytes, over the borders of pieces too."""
        if not self.patterns:
            return False
        keep = len(self.patterns[0]) - 1
        tail = b""
        for piece in pieces:
            data = tail + piece
            if any(pattern in data for pattern in self.patterns):
                return True
            tail = data[len(data) - keep :] if len(data) > keep else data
        return False

    # -- what people read ---------------------------------------------------------------------

    def is_told(self, text: str) -> bool:
        """Whether a text shows it; its beginning too, where something was cut off."""
        data = text.encode("utf-8", "surrogatepass")
        return any(pattern in data for pattern in self.patterns) or any(
            end is not None for end in self._cut(text)
        )

    def cleaned(self, text: str) -> str:
        """The text with what is looked for replaced."""
        for word in self.texts:
            for form in dict.fromkeys((word, *_quoted(word))):
                text = text.replace(form, REDACTED)
        for end in self._cut(text):
            if end is not None:
                return text[:end] + REDACTED
        return text

    def cleaned_all(self, value: Any) -> Any:
        """JSON, or what pickles of plain values hold, with all texts in it cleaned."""
        if isinstance(value, str):
            return self.cleaned(value) if self.is_told(value) else value
        if isinstance(value, dict):
            return {self.cleaned_all(k): self.cleaned_all(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            found = [self.cleaned_all(one) for one in value]
            return found if isinstance(value, list) else tuple(found)
        return value

    def _cut(self, text: str) -> Iterator[int | None]:
        """Where each text begins that runs into an ellipsis at the end."""
        shown = text.rstrip("'\")]}> ")
        if not shown.endswith(("…", "...")):
            return
        shown = shown.rstrip("….").rstrip("'\"")
        for word in self.texts:
            yield next(
                (
                    len(shown) - size
                    for size in range(min(len(word) - 1, len(shown)), _PART - 1, -1)
                    if shown.endswith(word[:size])
                ),
                None,
            )


def _forms(text: str) -> Iterator[bytes]:
    for form in (text, *_quoted(text)):
        yield form.encode("utf-8", "surrogatepass")
    for encoding in ("utf-16-le", "utf-32-le"):
        yield text.encode(encoding, "surrogatepass")


def _quoted(text: str) -> Iterator[str]:
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield repr(text)[1:-1]
