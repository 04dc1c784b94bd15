"""Why a process did not start, from what it wrote before it ended."""

from __future__ import annotations

import re
from typing import Final

from kernel_runtime.later import dataclass

KEPT: Final = 16_000
"""Characters of its output that are looked at: the end, where Python names the error."""

_ERROR: Final = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)\b.*$", re.MULTILINE)
_NUMBERS: Final = re.compile(r"\[Errno \d+\] ")
_MISSING: Final = re.compile(r"No module named '(\w+)")
_SITE: Final = re.compile(r"^.*/(?:site-packages|dist-packages|python\d\.\d+)(?=/)")
_PLACE: Final = re.compile(r'^\s*File "([^"<]+)", line (\d+)', re.MULTILINE)


@dataclass(frozen=True)
class StartFailure:
    """text: one sentence that names the cause. files: where, the place that raised first."""

    text: str
    files: tuple[str, ...] = ()


def explain(python: str, words: str, how: str) -> StartFailure:
    """python: the interpreter. words: what it wrote. how: what is known of its end otherwise."""
    how = _NUMBERS.sub("", how)
    begin = f"The Python of this kernel ({python}) does not start: "
    files = tuple(dict.fromkeys(path for path, _ in reversed(_PLACE.findall(words))))
    files = (*_missing(words, files), *files)
    errors = _ERROR.findall(words)
    if errors:
        places = _PLACE.findall(words)
        where = f" ({places[-1][0]}, line {places[-1][1]})" if places else ""
        return StartFailure(f"{begin}{errors[-1].strip()}{where}.", files)
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    if lines:
        return StartFailure(f"{begin}{lines[-1]} ({how}).", files)
    return StartFailure(f"{begin}{how}.", (python,))


def _missing(words: str, files: tuple[str, ...]) -> tuple[str, ...]:
    """Where a module that is not found may have been."""
    names = dict.fromkeys(_MISSING.findall(words))
    sites = dict.fromkeys(found[0] for path in files if (found := _SITE.match(path)))
    return tuple(f"{site}/{name}{end}" for name in names for site in sites for end in ("", ".py"))
