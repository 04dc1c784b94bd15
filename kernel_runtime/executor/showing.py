"""Show variables as a cell that ends with their names would: text, HTML, images.

Runs in a copy of the session (``copies``), which is confined and thrown away: what the user's own
``__repr__`` does there changes nothing, and how long it takes costs nobody anything.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from typing import Any, Final

MIMES: Final = ("text/plain", "text/html", "text/markdown", "image/svg+xml", "image/png",
                "image/jpeg")  # fmt: skip
TEXT_MOST: Final = 20_000
"""Characters of a text."""

DATA_MOST: Final = 4 << 20
"""Characters of HTML or of an image; what is larger is left out."""

ROWS: Final = 20
_FRAMES: Final = ("pandas", "polars", "modin", "cudf")
_DPI: Final = 72


def show(shell: Any, names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each name with its MIME bundle, or an error. Never raises for what a variable does."""
    for name in names:
        try:
            if name not in shell.user_ns:
                yield name, {"error": "it is not there"}
                continue
            yield name, {"data": _bundle(shell, shell.user_ns[name])}
        except BaseException as error:  # whatever the user's own code raises, exits included
            yield name, {"error": f"{type(error).__name__}: {error}"[:500]}


def _bundle(shell: Any, value: Any) -> dict[str, str]:
    value = _head(value)
    formatters = shell.display_formatter.formatters
    data: dict[str, str] = {}
    for mime in MIMES:
        try:
            found = formatters[mime](value)
        except NotImplementedError:
            continue
        _add(data, mime, found)
    if "image/png" not in data and (figure := _figure(value)) is not None:
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=_DPI, bbox_inches="tight")
        _add(data, "image/png", file.getvalue())
    return data


def _add(data: dict[str, str], mime: str, found: Any) -> None:
    if isinstance(found, tuple):  # with metadata
        found = found[0]
    if isinstance(found, bytes):
        found = base64.b64encode(found).decode("ascii")
    if not isinstance(found, str):
        return
    if mime == "text/plain" and len(found) > TEXT_MOST:
        found = found[:TEXT_MOST] + "…"
    if len(found) <= DATA_MOST:
        data[mime] = found


def _head(value: Any) -> Any:
    """The beginning of what may be long; told by the type, so that no proxy wakes."""
    kind = type(value)
    if kind in (str, bytes, bytearray, list, tuple) and len(value) > TEXT_MOST:
        return value[:TEXT_MOST]
    library = str(kind.__module__).partition(".")[0]
    if library in _FRAMES and hasattr(kind, "head") and hasattr(kind, "__len__"):
        return value.head(ROWS)
    return value


def _figure(value: Any) -> Any:
    """The figure that matplotlib's object is or is in, or None."""
    for kind in type(value).__mro__:
        if (kind.__module__, kind.__name__) == ("matplotlib.figure", "Figure"):
            return value
        if (kind.__module__, kind.__name__) == ("matplotlib.axes._axes", "Axes"):
            return value.figure
    return None
