"""The line behind a magic as words: quotes are optional, nothing is expanded.

IPython's own splitting follows the shell, which refuses ``%checkpoint before Anna's join``. Here a
quote counts only where a word begins with it and ends with its partner.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NoReturn, TypeVar

from IPython.core.error import UsageError

from jupyter_timetravel.given_once import once

Magic = TypeVar("Magic", bound=Callable[..., Any])

_WORD: Final = re.compile(
    r"""\s*(?:"(?P<double>(?:[^"\\]|\\.)*)"(?=\s|$)|'(?P<single>(?:[^'\\]|\\.)*)'(?=\s|$)"""
    r"""|(?P<plain>\S+))""",
    re.DOTALL,
)
_SHIELD: Final = "\0"
_ESCAPED: Final = re.compile(r"""\\(["'\\])""")


class Word(str):
    """A word that knows where in the line it stood."""

    start: int
    end: int
    quoted: bool


def words(line: str) -> list[Word]:
    """Split a line. Within quotes, a backslash keeps a quote or a backslash as it is."""
    found = []
    for match in _WORD.finditer(line):
        kind = match.lastgroup
        text = match[kind] if kind else ""
        is_quoted = kind != "plain"
        text = _ESCAPED.sub(r"\1", text) if is_quoted else text
        found.append(_word(text, match.span(kind or 0), is_quoted))
    return found


def _word(text: str, span: tuple[int, int], quoted: bool) -> Word:
    word = Word(text)
    word.start, word.end = span
    word.quoted = quoted
    return word


def _shield(found: Sequence[Word]) -> list[Word]:
    """Mark what must not be taken for an option: what is quoted, and what follows ``--``."""
    ends = found.index("--") if "--" in found else len(found)
    return [
        _word(_SHIELD + word, (word.start, word.end), word.quoted)
        if word.startswith("-") and (word.quoted or position > ends)
        else word
        for position, word in enumerate(found)
        if position != ends
    ]


def _unshield(value: Any) -> Any:
    if isinstance(value, list):
        return [_unshield(item) for item in value]
    if isinstance(value, str) and value.startswith(_SHIELD):
        bare = value[len(_SHIELD) :]
        if isinstance(value, Word):
            return _word(bare, (value.start, value.end), value.quoted)
        return bare
    return value


def phrase(given: Sequence[str], line: str) -> str:
    """Words as one text, with the blanks that stood between them where nothing else did."""
    parts = sorted((w for w in given if isinstance(w, Word)), key=lambda w: w.start)
    if len(parts) != len(given) or any(word.quoted for word in parts):
        return " ".join(given)
    out = ""
    for before, word in zip([None, *parts], parts):
        between = line[before.end : word.start] if before else ""
        out += (between if before and between.isspace() else " " if before else "") + word
    return out


class LineParser(argparse.ArgumentParser):
    """A parser for the line behind a magic: no exit, errors in one line, ``-h`` like ``?``."""

    def __init__(self, magic: str, description: str) -> None:
        super().__init__(prog=f"%{magic}", description=description, add_help=False)
        once(self)
        self.color = False  # from Python 3.14 on: the help is also a docstring
        self.add_argument("-h", "--help", action="store_true", help="Show this and do nothing.")

    def error(self, message: str) -> NoReturn:
        """Called by argparse for whatever is wrong."""
        raise UsageError(f"{self.prog}: {message} (see {self.prog} -h)")

    def parse_line(self, line: str) -> argparse.Namespace | None:
        """The arguments; None if the help was printed instead. Raises UsageError."""
        args = self.parse_intermixed_args(list(_shield(words(line))))
        for name, value in vars(args).items():
            setattr(args, name, _unshield(value))
        if args.help:
            print(self.format_help())
            return None
        return args


class Line:
    """What may stand behind a magic. The parser is made when it is needed: a start needs none."""

    def __init__(self, make: Callable[[], LineParser]) -> None:
        self._parser = cache(make)

    def parse(self, line: str) -> argparse.Namespace | None:
        """See LineParser.parse_line."""
        return self._parser().parse_line(line)

    def help(self) -> str:
        """What ``%magic -h`` prints."""
        return self._parser().format_help()

    def documents(self, magic: Magic) -> Magic:
        """Decorator: let ``%magic?`` show the same help as ``%magic -h``."""
        magic.__doc__ = f"``{magic.__name__} -h`` tells more."
        magic.getdoc = self.help  # type: ignore[attr-defined]  # IPython asks for it
        return magic
