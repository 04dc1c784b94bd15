"""File names are bytes. How they are written into JSON, and shown to people."""

from __future__ import annotations

import re
import unicodedata


def to_text(name: bytes) -> str:
    """Reversible text for JSON: bytes that are not UTF-8 become lone surrogates (PEP 383)."""
    return name.decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    """The inverse of to_text, whatever the locale is."""
    return text.encode("utf-8", "surrogateescape")


def printable(path: bytes, encoding: str = "utf-8") -> str:
    r"""One line that can be printed in the encoding and that tells each path apart.

    A byte that is not UTF-8 becomes \xNN, a character that is not printable, combines with
    the one before, or does not exist in the encoding \uNNNN or \UNNNNNNNN, a backslash two.
    """
    shown: list[str] = []
    for char in path.decode("utf-8", "surrogateescape"):
        code = ord(char)
        if char == "\\":
            shown.append("\\\\")
        elif 0xDC80 <= code <= 0xDCFF:
            shown.append(f"\\x{code - 0xDC00:02x}")
        elif char.isprintable() and not unicodedata.combining(char) and _fits(char, encoding):
            shown.append(char)
        else:
            shown.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return "".join(shown)


_ESCAPED = re.compile(r"\\(?:\\|x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


def from_printable(text: str) -> bytes:
    """The path that ``printable`` has shown so; what was not made by it is taken as it stands."""

    def unescaped(found: re.Match[str]) -> str:
        byte, short, long = found.groups()
        if byte is not None:
            return chr(0xDC00 + int(byte, 16))
        return chr(int(short or long, 16)) if short or long else "\\"

    return to_bytes(_ESCAPED.sub(unescaped, text))


def _fits(char: str, encoding: str) -> bool:
    try:
        char.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
