"""Which paths a restore leaves alone, though they differ from the snapshot."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from kernel_runtime.engines.workspace.model import LeftOut
from kernel_runtime.engines.workspace.operations import is_below
from kernel_runtime.engines.workspace.rules import Rules
from kernel_runtime.later import dataclass

DOCUMENT: Final = "notebook document: the front end owns it"

NOT_CHOSEN: Final = "it was not chosen"

OTHERS: Final = "another program made it while no cell ran"

FORMER: Final = "the notebook was called so before"

_SUFFIX: Final = b".ipynb"


@dataclass(frozen=True)
class Protection:
    """The paths of one root that a restore leaves alone, each with a reason.

    absent: paths that the snapshot could not hold. rules: those of the snapshot. documents:
    paths of the running notebook and its copy; None: every notebook. former: what the running
    notebook was called before: brought back, it would be there twice. only: the chosen paths,
    which are meant with all below; None: all.
    """

    absent: dict[bytes, str]
    rules: Rules
    documents: frozenset[bytes] | None
    former: frozenset[bytes] = frozenset()
    only: frozenset[bytes] | None = None

    def is_chosen(self, path: bytes) -> bool:
        """Whether the path itself is meant, not just something below it."""
        return self.only is None or any(is_below(path, one) for one in self.only)

    def reason(self, path: bytes) -> str:
        """Why this path stays as it is; "" if it does not have to."""
        if not self.is_chosen(path) and not any(is_below(one, path) for one in self.only or ()):
            return NOT_CHOSEN
        left_out = self.absent.get(path)
        if left_out is not None:
            return f"not in the snapshot: {left_out}"
        if self.rules.excludes(path):
            return "left out by the rules of the snapshot"
        if path in self.former and path not in (self.documents or ()):
            return FORMER
        if self.documents is None:
            return DOCUMENT if path.endswith(_SUFFIX) else ""
        return DOCUMENT if path in self.documents else ""

    def keeps_out(self, path: bytes) -> bool:
        """Whether it may not even be made where nothing is. A notebook that is gone may: there is
        nothing of the front end's to overwrite."""
        return self.reason(path) not in ("", DOCUMENT)

    def may_be_below(self, path: bytes) -> bool:
        """Whether something that must stay can lie below this directory at all."""
        if self.documents is None or not self.is_chosen(path):
            return True
        known = (*self.absent, *self.documents, *self.former, *self.rules.paths)
        return any(is_below(one, path) for one in known)


def documents_of(root: Path, document: Path | None) -> frozenset[bytes] | None:
    """Relative paths of the running notebook and its checkpoint copy; None: not known."""
    if document is None:
        return None
    copy = f"{document.stem}-checkpoint{document.suffix}"
    names = (document, document.parent / ".ipynb_checkpoints" / copy)
    return frozenset(path for one in names for path in inside(root, one))


def inside(root: Path, path: Path) -> Iterator[bytes]:
    """A path relative to a root; nothing if it is not below it."""
    # Either may have been given by way of a symlink; the last name itself may be one.
    for parent in (path.parent, Path(os.path.realpath(path.parent))):
        for top in (root, Path(os.path.realpath(root))):
            if parent.is_relative_to(top):
                yield os.fsencode(parent.relative_to(top) / path.name)


def absent_paths(left_out: Sequence[LeftOut], root: int) -> dict[bytes, str]:
    """What a snapshot does not hold of one root, with the reasons."""
    return {one.path: one.reason for one in left_out if one.absent and one.root == root}
