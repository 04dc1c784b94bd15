"""Tab completion behind the magics: options, subcommands and labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from IPython.core.interactiveshell import InteractiveShell

from kernel_runtime.errors import TimeTravelError

FIXED: Final = {
    "%checkpoint": ("--label", "--pin", "--unpin", "--delete", "--help"),
    "%restore": ("--only", "--dry-run", "--undo", "--force", "--help"),
    "%timeline": ("diff", "--all", "--manual", "--help"),
    "%timetravel": ("status", "list", "config", "label", "--help"),
}
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
        if magic not in TAKES_LABELS:
            return list(fixed)
        try:
            named = labels()
        except TimeTravelError:
            named = []
        return [*fixed, *(f'"{name}"' if " " in name else name for name in named)]

    return complete
