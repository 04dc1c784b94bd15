"""What has changed in the environment: between checkpoints, and on the host beneath it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from itertools import islice
from typing import Any, Final

from kernel_runtime.engines.overlay import plan as planning
from kernel_runtime.engines.overlay.changes import COMPARED_BYTES, touched
from kernel_runtime.engines.overlay.comparison import FILES_MOST, compare
from kernel_runtime.engines.overlay.hostchanges import host_changes
from kernel_runtime.engines.overlay.index import build_index, load_index
from kernel_runtime.supervisor import followed
from kernel_runtime.supervisor.config import Supervisor
from kernel_runtime.supervisor.environment import Environment, layers_of, places_of
from kernel_runtime.timeline.model import Capture

_LISTED_QUICKLY: Final = 200


class EnvironmentChanges:
    """Looks into the layers of one session's environment."""

    def __init__(self, environment: Environment, config: Supervisor, log: logging.Logger) -> None:
        self._environment = environment
        self._config = config
        self._log = log

    async def compare(
        self,
        before: Capture | None,
        after: Capture | None,
        *,
        files: bool = True,
        quick: bool = False,
        packages: list[dict[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """Return {"files", "workspace", "packages", "complete"} of what changed; None: the present.

        files: list them; packages alone are told faster. quick: files of one size are told apart
        by their times, and few are listed. workspace: the files of an isolated one, which are in
        the layers too. packages: which change, where that is known.
        """
        if self._environment.engine is None:
            return {"files": [], "workspace": [], "packages": [], "complete": True}
        engine = self._environment.engine
        sides = [engine.present() if c is None else places_of(c)[0] for c in (before, after)]
        read, most = (0, _LISTED_QUICKLY) if quick else (COMPARED_BYTES, FILES_MOST)
        found = await asyncio.to_thread(
            compare, engine, sides[0], sides[1], files, read, most, packages is None
        )
        if packages is not None:
            found["packages"] = packages
        roots = [os.getcwd(), *self._config.more_workspace] if self._config.is_isolated else []
        found["files"], found["workspace"] = _parted(found["files"], roots)
        return found

    def differ(self, before: Capture, after: Capture) -> bool:
        """Whether two captures name different layers."""
        if self._environment.engine is None:
            return False
        engine = self._environment.engine
        old, new = (places_of(capture) for capture in (before, after))
        return engine.rewritten(old[0]) != engine.rewritten(new[0]) or old[1] != new[1]

    def weight(self, before: Capture, after: Capture, most: int) -> int | None:
        """How many paths the layers touch in which two captures differ, told at once.

        None if that would take a walk over more than so many.
        """
        if self._environment.engine is None:
            return 0
        engine = self._environment.engine
        total = 0
        for layer in layers_of(before) ^ layers_of(after):
            index = load_index(engine.directory.layers / layer)
            if index is not None and index.summary is not None:
                total += index.summary.paths + index.summary.deleted
                continue
            try:
                paths = islice(touched(engine.directory.files(layer), engine.markers), most + 1)
                count = sum(1 for _ in paths)
            except OSError:
                return None
            if count > most:
                return None
            total += count
        return total

    async def host_changes(
        self, capture: Capture | None, since_ns: int
    ) -> tuple[list[str], list[str]]:
        """What the host has changed: under the present layers and those of a capture; and files
        that the session no longer follows, since it has its own (followed.py)."""
        if self._environment.engine is None:
            return [], []
        engine = self._environment.engine
        stacks = {root: list(stack) for root, stack in engine.state.stacks.items()}
        for root, stack in places_of(capture)[0].items() if capture is not None else ():
            stacks[root] = list(dict.fromkeys([*stack, *stacks.get(root, [])]))

        def look() -> tuple[list[str], list[str]]:
            there = {
                root: [layer for layer in stack if engine.directory.exists(layer)]
                for root, stack in stacks.items()
            }
            views = {root: view for root, view in engine.views(there).items() if root in there}
            changed = host_changes(views, since_ns, prefixes=[self._environment.prefix])
            behind = followed.left_behind(views, since_ns)
            beneath = [
                path
                for path in changed
                if path not in behind
                and not any(planning.within(path, own) for own in self._environment.own)
            ]
            return beneath, behind

        return await asyncio.to_thread(look)

    async def changed_since_last_time(self) -> list[str]:
        """What of the host is not as it was when this session ended last."""
        if self._environment.engine is None or not self._environment.found_layers:
            return []
        state = self._environment.engine.state
        beneath, behind = await self.host_changes(None, state.since_ns)
        state.since_ns = time.time_ns()
        return [*beneath, *behind]

    async def index(self, capture: Capture | None) -> None:
        """Note what new layers hold, so that nobody has to walk them again. Never raises."""
        if self._environment.engine is None or capture is None:
            return
        engine = self._environment.engine
        for layer in capture.details.get("fresh", ()):
            try:
                await asyncio.to_thread(
                    build_index, engine.directory.layers / layer, engine.markers
                )
            except OSError as error:
                self._log.warning("No index of layer %s: %s", layer, error)


def _parted(
    changes: list[dict[str, Any]], workspace: list[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Changes outside of the workspace, and those within, with paths relative to it."""
    outside, within = [], []
    roots = [os.path.realpath(os.path.expanduser(root)) for root in workspace]
    for change in changes:
        path = f"{change['root'].rstrip('/')}/{change['path']}"
        root = next((root for root in roots if path.startswith(root + "/")), None)
        if root is None:
            outside.append(change)
        else:
            within.append({**change, "root": root, "path": path[len(root) + 1 :]})
    return outside, within
