"""Which paths a restore leaves alone, though they differ from the snapshot."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kernel_runtime.engines.workspace.model import LeftOut
from kernel_runtime.engines.workspace.operations import is_below
from kernel_runtime.engines.workspace.rules import Rules

DOCUMENT: Final = "notebook document: the front end owns it"

_SUFFIX: Final = b".ipynb"


@dataclass(frozen=True)
class Protection:
    """The paths of one root that a restore leaves alone, each with a reason.

    absent: paths that the snapshot could not hold. rules: those of the snapshot. documents:
    paths of the running notebook and its copy; None: every notebook.
    """

    absent: dict[bytes, str]
    rules: Rules
    documents: frozenset[bytes] | None

    def reason(self, path: bytes) -> str:
        """Why this path stays as it is; "" if it does not have to."""
        left_out = self.absent.get(path)
        if left_out is not None:
            return f"not in the snapshot: {left_out}"
        if self.rules.excludes(path):
            return "left out by the rules of the snapshot"
        if self.documents is None:
            return DOCUMENT if path.endswith(_SUFFIX) else ""
        return DOCUMENT if path in self.documents else ""

    def keeps_out(self, path: bytes) -> bool:
        """Whether it may not even be made where nothing is. A notebook that is gone may: there is
        nothing of the front end's to overwrite."""
        return self.reason(path) not in ("", DOCUMENT)

    def may_be_below(self, path: bytes) -> bool:
        """Whether something that must stay can lie below this directory at all."""
        if self.documents is None:
            return True
        known = (*self.absent, *self.documents, *self.rules.paths)
        return any(is_below(one, path) for one in known)


def documents_of(root: Path, document: Path | None) -> frozenset[bytes] | None:
    """Relative paths of the running notebook and its checkpoint copy; None: not known."""
    if document is None:
        return None
    found: set[bytes] = set()
    # Either may have been given by way of a symlink; the notebook itself may be one.
    for parent in (document.parent, Path(os.path.realpath(document.parent))):
        for top in (root, Path(os.path.realpath(root))):
            try:
                inside = parent.relative_to(top)
            except ValueError:
                continue
            copy = f"{document.stem}-checkpoint{document.suffix}"
            for path in (inside / document.name, inside / ".ipynb_checkpoints" / copy):
                found.add(os.fsencode(path))
    return frozenset(found)


def absent_paths(left_out: Sequence[LeftOut], root: int) -> dict[bytes, str]:
    """What a snapshot does not hold of one root, with the reasons."""
    return {one.path: one.reason for one in left_out if one.absent and one.root == root}
