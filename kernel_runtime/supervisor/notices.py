"""What the user is told once after a cell, from what it changed outside of the workspace.

Nothing here is waited for: it is found out in the background, after the cell's checkpoint.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kernel_runtime.engines.overlay.changes import touched
from kernel_runtime.engines.overlay.engine import OverlayEngine
from kernel_runtime.engines.overlay.stack import Stack
from kernel_runtime.supervisor.environment import layers_of
from kernel_runtime.supervisor.executors import Executor
from kernel_runtime.supervisor.request import Request
from kernel_runtime.timeline.caches import is_cache
from kernel_runtime.timeline.model import Capture, Checkpoint
from kernel_runtime.timeline.text import one_line

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

_RECORD = 4 << 20
"""Bytes of a package's list of files that are read."""

_ENTRIES = 20_000
_PACKAGES = 50
_SHOWN = 4


class Notices:
    """Of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._told: set[tuple[str, str, str]] = set()
        self._told_outside = False

    async def after_cell(
        self, checkpoint: Checkpoint, request: Request, executor: Executor
    ) -> None:
        """Look at what a cell's checkpoint holds, and tell what there is to tell."""
        session = self._session
        engine = session.environment.engine
        now = checkpoint.capture("filesystem", engine="overlay")
        before = self._before(checkpoint, request)
        if engine is None or now is None or before is None:
            return
        was = before.capture("filesystem", engine="overlay")
        fresh = layers_of(now) - layers_of(was)
        if was is None or not fresh:
            return
        try:
            if not self._told_outside:
                await self._outside(engine, fresh, request)
            await self._loaded(engine, was, now, before, request, executor)
        except (OSError, ConnectionError) as error:
            session.log.warning("What a cell changed outside is not known: %s", error)

    def _before(self, checkpoint: Checkpoint, request: Request) -> Checkpoint | None:
        """The newest checkpoint that is not of the same cell."""
        timeline = self._session.timeline
        parent = checkpoint.parent
        while parent is not None and parent in timeline:
            found = timeline[parent]
            if found.coordinate.msg_id != request.id:
                return found
            parent = found.parent
        return None

    # -- the first file outside -------------------------------------------------------------

    async def _outside(self, engine: OverlayEngine, fresh: Iterable[str], request: Request) -> None:
        first = await asyncio.to_thread(_first_file, engine, set(fresh))
        if first is None or self._told_outside:
            return
        self._told_outside = True
        lives = "" if self._session.persistence.has_document else " and ends with the kernel"
        isolated = self._session.config.is_isolated
        where = "" if isolated else " outside of the workspace"
        self._session.router.say(
            f"time travel: what cells write{where}, as {one_line(first, 200)}, "
            f"is seen by this notebook only{lives}: `%timetravel files` lists it, "
            "`%timetravel apply PATH` copies it to this machine.\n",
            request.message,
            "stderr",
        )

    # -- what is loaded is not what is installed ---------------------------------------------

    async def _loaded(
        self,
        engine: OverlayEngine,
        was: Capture,
        now: Capture,
        before: Checkpoint,
        request: Request,
        executor: Executor,
    ) -> None:
        session = self._session
        found = await session.environment_changes.compare(was, now, files=False)
        installed = [p for p in found["packages"] if p["manager"] == "pip" and p["after"]]
        if not installed:
            return
        stacks: Mapping[str, list[str]] = now.details.get("stacks", {})
        modules = await asyncio.to_thread(_modules, engine, stacks, installed[:_PACKAGES])
        names = sorted({name for its in modules for name in its})
        if not executor.alive or session.executor is not executor:
            return
        loaded = await executor.versions(names)
        told = []
        for package, its in zip(installed, modules):
            version = _other_version(package, its, loaded)
            if version is None:
                continue
            key = (str(package["name"]), version, str(package["after"]))
            if key not in self._told:
                self._told.add(key)
                told.append(key)
        if not told:
            return
        shown = [f"{name} {old} is loaded; {new} is installed now" for name, old, new in told]
        more = len(shown) - _SHOWN
        text = ", ".join(one_line(one, 200) for one in shown[:_SHOWN])
        text += f" (and {more} more packages)" if more > 0 else ""
        session.router.say(
            f"time travel: {text}: restart the process to use "
            f"{'it' if len(told) == 1 else 'them'} (`exit` in a cell), or `%restore "
            f"{before.number}` to take it back.\n",
            request.message,
            "stderr",
        )


def _first_file(engine: OverlayEngine, layers: set[str]) -> str | None:
    """The absolute path of a file in some layers that is no cache, or None. Raises OSError."""
    present = engine.present()
    for root, stack in present.items():
        for layer in layers.intersection(stack):
            for entry in touched(engine.directory.files(layer), engine.markers):
                path = f"{root.rstrip('/')}/{os.fsdecode(entry.path)}"
                is_directory = (entry.stat.st_mode & 0o170000) == 0o040000
                if not (entry.deleted or is_directory or is_cache(path)):
                    return path
    return None


def _modules(
    engine: OverlayEngine,
    stacks: Mapping[str, list[str]],
    packages: list[dict[str, Any]],
) -> list[list[str]]:
    """The top modules of each of these packages, as their list of files says."""
    views = engine.views(stacks)
    found = []
    for package in packages:
        where = str(package["where"])
        root = engine.plan.root_of(where)
        names: list[str] = []
        if root is not None and root.path in views:
            at = os.fsencode(os.path.relpath(where, root.path))
            with views[root.path] as view:
                names = _top_modules(view, at, str(package["name"]), str(package["after"]))
        found.append(names or [re.sub(r"[-.]+", "_", str(package["name"]))])
    return found


def _top_modules(view: Stack, where: bytes, name: str, version: str) -> list[str]:
    plain = re.sub(r"[-_.]+", "_", name)
    prefix = b"" if where == b"." else where + b"/"
    for stem in dict.fromkeys((plain, plain.lower(), name)):
        path = prefix + os.fsencode(f"{stem}-{version}.dist-info/RECORD")
        try:
            text = view.read_bytes(path, _RECORD).decode("utf-8", "replace")
        except (OSError, ValueError):
            continue
        tops: dict[str, None] = {}
        for line in text.splitlines()[:_ENTRIES]:
            top, slash, _ = line.lstrip('"').partition(",")[0].partition("/")
            if not slash:
                top = top.partition(".")[0] if top.endswith((".py", ".so")) else ""
            if top.isidentifier() and top != "__pycache__":
                tops[top] = None
        return list(tops)
    return []


def _other_version(
    package: Mapping[str, Any], modules: Iterable[str], loaded: Mapping[str, Any]
) -> str | None:
    """The version that is loaded, if a new process would load another one."""
    where, path = str(package["where"]), list(loaded["path"])
    for name in modules:
        if name not in loaded["modules"]:
            continue
        version, place = loaded["modules"][name]
        if version == package["after"]:
            return None
        if place == where:
            # a module's own number need not be its package's: only what it was is known for sure
            return str(version) if version == package["before"] else None
        comes_first = where in path and (place not in path or path.index(where) < path.index(place))
        return str(version) if comes_first else None
    return None
