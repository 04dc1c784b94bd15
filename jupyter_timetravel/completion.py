"""Tab completion behind the magics: options, subcommands and labels."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from typing import Any, Final

from IPython.core.interactiveshell import InteractiveShell

from kernel_runtime.errors import TimeTravelError
from kernel_runtime.supervisor.restore_request import OPTIONS

FIXED: Final = {
    "%checkpoint": ("--label", "--pin", "--unpin", "--delete", "--help"),
    "%restore": (
        *(f"--{name.replace('_', '-')}" for name in OPTIONS),
        *("--vars", "--paths", "--help"),
    ),
    "%timeline": ("diff", "--all", "--manual", "--help"),
    "%timetravel": (
        *("status", "list", "config", "label", "files", "apply", "reset"),
        *("--all", "--dry-run", "--force", "--process", "--help"),
    ),
}
OF_APPLY: Final = ("--dry-run", "--force")
PATHS_MOST: Final = 200
TAKES_LABELS: Final = ("%restore", "%timeline")


def register(shell: InteractiveShell, labels: Callable[[], list[str]]) -> None:
    """Offer what may follow each magic. ``labels`` is asked when somebody completes."""
    for magic, fixed in FIXED.items():
        offer = _completer(magic, fixed, labels)
        shell.set_hook("complete_command", offer, str_key=magic)  # type: ignore[no-untyped-call]


def _completer(
    magic: str, fixed: tuple[str, ...], labels: Callable[[], list[str]]
) -> Callable[[Any, Any], list[str]]:
    def complete(shell: Any, event: Any) -> list[str]:
        if event.line.endswith("--only ") or event.line.split()[-2:-1] == ["--only"]:
            return ["process", "files"]
        if event.line.split()[:2] == ["%timetravel", "apply"]:
            return [*OF_APPLY, *_paths(event.symbol)]
        if magic == "%restore" and "--paths" in event.line.split():
            return _paths(event.symbol)
        if magic not in TAKES_LABELS:
            return list(fixed)
        try:
            named = labels()
        except TimeTravelError:
            named = []
        return [*fixed, *(f'"{name}"' if " " in name else name for name in named)]

    return complete


def _paths(begun: str) -> list[str]:
    """Files and directories that go on from what is written."""
    found = glob.glob(glob.escape(os.path.expanduser(begun)) + "*")[:PATHS_MOST]
    if begun.startswith("~"):
        home = os.path.expanduser("~")
        found = ["~" + path[len(home) :] if path.startswith(home) else path for path in found]
    return [path + "/" if os.path.isdir(os.path.expanduser(path)) else path for path in found]
