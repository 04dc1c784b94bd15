"""Print docs/errors.md: every error that this project raises on purpose, from the classes.

python scripts/errorlist.py > docs/errors.md
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

from kernel_runtime.errors import TimeTravelError

PACKAGES = ("kernel_runtime", "jupyter_timetravel")
HEAD = """\
# Errors

Every error that time travel raises on purpose, by the name that a notebook, the command line or a
`timetravel_reply` (as `ename`) shows. The message itself says what failed, what still holds, and
what to do. This page is written by `scripts/errorlist.py` from the classes; do not edit it.

| name | what it means | raised in |
| --- | --- | --- |
"""


def modules(package: str) -> Iterator[str]:
    """The names of a package and all modules below it, scripts (``__main__``) left out."""
    yield package
    root = importlib.import_module(package)
    for found in pkgutil.walk_packages(root.__path__, f"{package}."):
        if not found.name.endswith("__main__"):
            yield found.name


def error_classes() -> list[type[TimeTravelError]]:
    """All subclasses, sorted by name. Imports every module of the project."""
    for package in PACKAGES:
        for name in modules(package):
            importlib.import_module(name)
    found: set[type[TimeTravelError]] = set()
    todo = [TimeTravelError]
    while todo:
        below = todo.pop().__subclasses__()
        found.update(below)
        todo += below
    return sorted(found, key=lambda cls: cls.__name__)


def page() -> str:
    """The whole page as Markdown."""
    rows = []
    for cls in error_classes():
        meaning = " ".join(inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].split())
        rows.append(f"| `{cls.__name__}` | {meaning} | `{cls.__module__}` |\n")
    return HEAD + "".join(rows)


if __name__ == "__main__":
    print(page(), end="")
