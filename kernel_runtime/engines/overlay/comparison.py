"""What differs between two environments, as docs/protocol.md has it: files and packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from kernel_runtime.engines.overlay.changes import COMPARED_BYTES, changes
from kernel_runtime.engines.overlay.packages import package_changes
from kernel_runtime.engines.workspace.names import printable

if TYPE_CHECKING:
    from kernel_runtime.engines.overlay.engine import OverlayEngine

FILES_MOST = 2000
"""Files that a comparison lists; their packages are named all the same."""


def compare(
    engine: OverlayEngine,
    before: Mapping[str, Sequence[str]],
    after: Mapping[str, Sequence[str]],
    list_files: bool = True,
    compared_bytes: int = COMPARED_BYTES,
    most: int = FILES_MOST,
    list_packages: bool = True,
) -> dict[str, Any]:
    """Return files, packages and whether the files are all there are. Reads the disk.

    compared_bytes: content that is read at most to tell files of one size apart. most: files that
    are listed.
    """
    roots = [
        root
        for root in {*before, *after}
        if list(before.get(root, ())) != list(after.get(root, ()))
    ]
    files: list[dict[str, Any]] = []
    complete = True
    with ExitStack() as open_views:
        sides = []
        for stacks in (before, after):
            views = engine.views(stacks)
            sides.append({r: open_views.enter_context(views[r]) for r in roots if r in views})
        for root in sorted(sides[0]) if list_files else ():
            found = changes(sides[0][root], sides[1][root], most - len(files), compared_bytes)
            complete = complete and found.complete
            files += [
                {
                    "path": printable(change.path),
                    "root": root,
                    "kind": change.kind,
                    "size_before": change.size_before,
                    "size_after": change.size_after,
                }
                for change in found
                if not change.is_directory
            ]
        packages = [
            {
                "manager": one.manager,
                "name": one.name,
                "before": one.before,
                "after": one.after,
                "where": one.where,
            }
            for one in (package_changes(*sides) if list_packages else ())
        ]
    return {"files": files, "packages": packages, "complete": complete}
