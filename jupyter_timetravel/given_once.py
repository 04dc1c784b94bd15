"""Arguments that are given once, and given something: of several argparse takes the last.

``restore --member A --member B`` would bring B alone back, ``prune "$NOTEBOOK" --all`` with a
variable that is not set would prune every notebook. Where an option takes several words, more of
them are added.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


class GivenOnce(argparse.Action):
    """What argparse calls ``store``; register it under that name and under None."""

    may_be_empty = True

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if values == "" and not self.may_be_empty and self.dest not in _TEXTS:
            raise argparse.ArgumentError(self, "is empty: leave it out, or give it a value")
        before = getattr(namespace, self.dest, None)
        if option_string is not None and before is not None and before is not self.default:
            if not isinstance(before, list) or not isinstance(values, list):
                raise argparse.ArgumentError(self, "is given twice: it takes one value")
            values = [*before, *values]
        setattr(namespace, self.dest, values)


class GivenFully(GivenOnce):
    """The same for a shell's command line, where an empty word is a variable that is not set."""

    may_be_empty = False


_TEXTS = ("comment", "label", "text")
"""What may be empty: it says that there is none."""


def once(parser: argparse.ArgumentParser, action: type[argparse.Action] = GivenOnce) -> None:
    """Let all arguments that are added to the parser from now on be such."""
    for name in (None, "store"):
        parser.register("action", name, action)
