"""Text that came from anywhere, made safe for one line of a terminal or a page."""

from __future__ import annotations

import unicodedata
from typing import Final

JOINERS: Final = frozenset("\u200c\u200d")
"""Not printable to Python, but parts of emoji and of Persian and Indic words."""


def one_line(text: str, width: int) -> str:
    """``text`` on one line of at most ``width`` columns, control characters as escapes.

    Blanks and line ends become one space; what could move a cursor or reverse the reading
    order is shown as ``\\x1b``; a cut is marked with ``…``.
    """
    # Only so much is looked at: a comment may have a megabyte, a line shows a few words.
    joined = " ".join(text[: 4 * width + 40].split())
    safe = "".join(c if c.isprintable() or c in JOINERS else _escape(c) for c in joined)
    cut = len(text) > 4 * width + 40
    if not cut and columns(safe) <= width:
        return safe
    out, used = [], 0
    for c in safe:
        used += _width(c)
        if used > width - 1:
            break
        out.append(c)
    return "".join(out).rstrip() + "…"


def storable(text: str) -> str:
    """``text`` as any store can hold it: NUL and halves of surrogate pairs as escapes."""
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def columns(text: str) -> int:
    """How many columns of a terminal it takes."""
    return sum(map(_width, text))


def pad(text: str, width: int) -> str:
    """``text`` filled with spaces to ``width`` columns."""
    return text + " " * max(0, width - columns(text))


def plural(count: int, noun: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def size_text(size: int) -> str:
    """Bytes in decimal units: ``24.0 kB``."""
    if size < 1000:
        return f"{size} B"
    amount = float(size)
    for unit in ("kB", "MB", "GB"):
        amount /= 1000
        if amount < 999.95:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1000:.1f} TB"


def _escape(c: str) -> str:
    return c.encode("unicode_escape").decode("ascii")


def _width(c: str) -> int:
    if c in JOINERS or unicodedata.combining(c):
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1
