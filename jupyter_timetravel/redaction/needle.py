"""What is to be taken out, and how to tell that something holds it.

A text is looked for as it may lie in a file, a pickle or an array: UTF-8, UTF-16 and UTF-32, and as
JSON and Python write it between quotes. What is compressed, encrypted or in base64 *within* a
value or a file is not recognised: nothing is unpacked but what the store itself has packed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from kernel_runtime.errors import BadRequest

REDACTED: Final = "[redacted]"
_ID: Final = re.compile(r"[0-9a-f]{8,}", re.ASCII)
"""Names of layers, checkpoints and content: a number may stand in one by chance."""
SHORTEST: Final = 6
"""Characters of a text that can be looked for: a shorter one is in everything."""
_PART: Final = 5
"""Characters of its beginning by which a text is recognised where something was cut off."""
_Clean = Callable[[str], str]


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

    def cleaned(self, text: str, *, is_cut: bool = False) -> str:
        """The text with what is looked for replaced.

        is_cut: it went on, and no ellipsis says so.
        """
        for word in self.texts:
            for form in dict.fromkeys((word, *_quoted(word))):
                text = text.replace(form, REDACTED)
        for end in self._cut(text, is_cut):
            if end is not None:
                return text[:end] + REDACTED
        return text

    def cleaned_line(self, line: str) -> str:
        """The first line of something, cleaned; the first line of a longer text at its end too."""
        line = self.cleaned(line)
        for word in self.texts:
            first, is_broken, _ = word.partition("\n")
            first = first.rstrip()
            if is_broken and len(first) >= _PART and line.endswith(first):
                return line[: -len(first)] + REDACTED
        return line

    def cleaned_all(self, value: Any) -> Any:
        """JSON, or what pickles of plain values hold, with all texts in it cleaned."""
        return self._cleaned(value, self._cleaned_text, self._cleaned_text)

    def cleaned_fields(self, value: Any) -> Any:
        """JSON of our own, with all texts in it cleaned but names of fields and of content.

        A secret may be a word that is the name of a field, or digits that stand in a digest.
        """
        return self._cleaned(value, lambda key: key, self._cleaned_field)

    def _cleaned(self, value: Any, key: _Clean, text: _Clean) -> Any:
        if isinstance(value, str):
            return text(value)
        if isinstance(value, dict):
            return {
                key(k) if isinstance(k, str) else self._cleaned(k, key, text): self._cleaned(
                    v, key, text
                )
                for k, v in value.items()
            }
        if isinstance(value, (list, tuple)):
            found = [self._cleaned(one, key, text) for one in value]
            return found if isinstance(value, list) else tuple(found)
        return value

    def _cleaned_text(self, text: str) -> str:
        return self.cleaned(text) if self.is_told(text) else text

    def _cleaned_field(self, text: str) -> str:
        is_id = _ID.fullmatch(text) and text not in self.texts
        return text if is_id else self._cleaned_text(text)

    def _cut(self, text: str, is_cut: bool = False) -> Iterator[int | None]:
        """Where each text begins that runs into an ellipsis, or a cut, at the end."""
        shown = text.rstrip("'\")]}> ")
        if shown.endswith(("…", "...")):
            shown = shown.rstrip("….").rstrip("'\"")
        elif is_cut:
            shown = text
        else:
            return
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
