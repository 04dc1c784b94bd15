"""Engine ``overlay``: the environment (all files outside of the workspace) as a stack of layers.

A capture is a layer, a restore is a mount: both cost the same for one file and for a million. This
is the supervisor's half, which knows what belongs to which checkpoint; the mounts are made by the
sandbox's init (mounts.py), which is asked over its socket.

Keeps:  everything that a filesystem holds, below the directories that are covered (plan.py).
Loses:  what is passed through to the host: /tmp, /run, devices, remote filesystems.
Needs:  Linux with overlayfs for this user (trial.py), and a store that can carry a layer.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol

from kernel_runtime.engines.overlay import faults, rootdir
from kernel_runtime.engines.overlay.directory import FULL, EnvironmentDirectory, State
from kernel_runtime.engines.overlay.markers import TRUSTED, USER
from kernel_runtime.engines.overlay.plan import Plan
from kernel_runtime.engines.overlay.runs import replace_run, runs_together
from kernel_runtime.engines.overlay.stack import Stack
from kernel_runtime.errors import EnvironmentRefused, SandboxError
from kernel_runtime.later import dataclass
from kernel_runtime.linux import boot_id
from kernel_runtime.store.reflinks import sync_filesystem

Stacks = dict[str, list[str]]
"""For each root its layers, newest first; roots without layers are left out."""

DEEP = 48
"""Layers of one root from which on the oldest are merged. Lookups stay fast far beyond."""

_LEFT_UNMERGED = 8

_WORTH_MERGING = 4
"""Layers that no checkpoint needs apart from each other."""

_MADE = {
    TRUSTED.prefix: "by root with the right to mount",
    USER.prefix: "in a user namespace",
}

ASIDE = ".unsynced"
"""Ends the names of layers that may be damaged."""


class Init(Protocol):
    """The sandbox, as far as this engine needs it."""

    async def request(self, op: str, pass_fds: Sequence[int] = (), **fields: Any) -> dict[str, Any]:
        """Raises SandboxError."""


@dataclass
class Captured:
    """The environment at one coordinate."""

    stacks: Stacks
    root_layer: str
    fresh: list[str] = field(default_factory=list)
    """Layers that this capture has made."""
    notes: list[tuple[str, str, str]] = field(default_factory=list)
    took_ms: float = 0.0

    def details(self) -> dict[str, Any]:
        """What a capture record keeps of it."""
        return {"stacks": self.stacks, "root_layer": self.root_layer}


class OverlayEngine:
    """The environment of one timeline. One capture or restore at a time (the session's lock)."""

    name = "overlay"

    def __init__(self, directory: EnvironmentDirectory, init: Init, plan: Plan) -> None:
        self.directory = directory
        self.plan = plan
        self._init = init
        self.state = State()
        self.markers = USER if plan.userxattr else TRUSTED
        self._unsynced: list[str] = []
        self._on_disk: set[str] = set()
        """Layers that the state file names. It may be older than the state, on a full disk."""
        self._synced_names: set[str] = set()
        """Those that the state named that was synced last: what a power cut may lead back to."""
        self._mounted: dict[str, set[str]] = {}
        """Layers below each mount: after a merge they are still those that were merged."""

    # -- life -------------------------------------------------------------------------------

    async def start(self, has_followed: Callable[[], bool] = lambda: False) -> dict[str, str]:
        """Mount everything, with what the session left there last time.

        has_followed: whether the workspace has been restored, where a restore was cut short between
        the two: asked only then.

        Returns what is not covered, with the reason. Raises SandboxError if nothing can be, and
        EnvironmentRefused if what is there cannot be read.
        """
        self.directory.make()
        self.directory.remove_unfinished()
        state = self.directory.read()
        self._on_disk = state.names()
        if state.markers not in ("", self.markers.prefix):
            raise EnvironmentRefused(
                f"the layers of this session were made {_MADE[state.markers]}, and cannot be read "
                f"{_MADE[self.markers.prefix]}. They were left alone; run the kernel as before, or "
                "`jupyter timetravel prune NOTEBOOK --session` deletes them"
            )
        state.markers = self.markers.prefix
        told = dict(self.plan.not_covered)
        state.end_cut_short(has_followed)
        self._take_up(state, told)
        answer = await self._init.request(
            "environment",
            **self.plan.request(str(self.directory.path), state.stacks),
            root_layer=state.root_layer,
        )
        told.update(answer["problems"])
        self.state = state
        self._take_uppers(answer["uppers"])
        state.root_layer = answer["root_layer"]
        state.boot, state.running = boot_id(), True
        state.since_ns = state.since_ns or time.time_ns()
        # what was the upper at the end is named by checkpoints from now on
        layers = [*dict.fromkeys(layer for stack in state.stacks.values() for layer in stack)]
        layers += [state.root_layer] if state.root_layer else []
        self._unsynced = [layer for layer in layers if layer not in state.synced]
        self._write()
        return told

    def _take_uppers(self, uppers: dict[str, str]) -> None:
        for root, upper in uppers.items():
            if upper != self.state.uppers.get(root):
                self._mounted[root] = set(self.state.stacks.get(root, ()))
        self.state.uppers = uppers

    def _write(self, *, durable: bool = False) -> None:
        """Note what is mounted. On a full disk what was noted before stays true, and is kept."""
        try:
            self.directory.write(self.state, durable=durable)
        except OSError as error:
            if error.errno not in FULL:
                raise
        else:
            self._on_disk = self.state.names()
            if durable:
                self._synced_names = self._on_disk
        faults.point("state written")

    def _take_up(self, state: State, told: dict[str, str]) -> None:
        """Make what was the upper at the end of the last run a layer."""
        lost_power = state.running and state.boot != boot_id()
        for root in {*state.stacks, *state.uppers}:
            stack = list(state.stacks.get(root, []))
            upper = state.uppers.get(root)
            if upper and self.directory.exists(upper) and not self.directory.is_empty(upper):
                stack.insert(0, upper)
            aside = []
            while lost_power and stack and stack[0] not in state.synced:
                # it may not have reached the disk, or half of it: kept, but not used
                suspect = stack.pop(0)
                old = state.merged.pop(suspect, [])
                if old and all(map(self.directory.exists, old)):
                    stack[:0] = old  # what it was merged of is still there
                else:
                    aside.append(suspect)
            if aside:
                self._put_aside(aside)
                told[root] = (
                    "the machine went down while the kernel ran: what was written here since the "
                    f"newest stored checkpoint may be damaged and was put aside ({aside[0]})"
                )
            gone = [layer for layer in stack if not self.directory.exists(layer)]
            if gone:
                told[root] = f"layers of it are gone ({', '.join(gone)}): it is as without them"
                stack = [layer for layer in stack if layer not in gone]
            state.stacks[root] = stack
        state.uppers = {}

    def _put_aside(self, layers: Iterable[str]) -> None:
        for layer in layers:
            with contextlib.suppress(OSError):
                os.rename(self.directory.layers / layer, self.directory.layers / (layer + ASIDE))

    async def close(self, referenced: Iterable[str]) -> None:
        """The sandbox is down: write the state, delete what nothing refers to."""
        state = self.state
        for root, upper in list(state.uppers.items()):
            if self.directory.is_empty(upper):
                del state.uppers[root]
        await self.collect(referenced)
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self._sync_all)
            state.synced = sorted({*state.synced, *self._unsynced, *state.uppers.values()})
            state.running = False
            state.since_ns = time.time_ns()
            self.directory.write(state, durable=True)

    def _sync_all(self) -> None:
        fd = os.open(self.directory.layers, os.O_RDONLY)
        try:
            sync_filesystem(fd)
        finally:
            os.close(fd)

    # -- capturing --------------------------------------------------------------------------

    async def capture(
        self,
        executor: int,
        keep: Iterable[int],
        hold: int | None,
        *,
        must: bool = False,
        by_copy: bool = False,
    ) -> Captured:
        """Capture now, or, with hold, when the executor at its other end has stopped.

        keep: pids of frozen processes, which hold nothing. must: also on a full disk. by_copy: what
        is mounted stays, and is copied. Raises SandboxError; then nothing was captured and the
        session runs on.
        """
        if must:
            self.directory.make_room()
        answer = await self._init.request(
            "capture",
            [] if hold is None else [hold],
            executor=executor,
            keep=list(keep),
            root_layer=self.state.root_layer,
            by_copy=by_copy,
        )
        captured = Captured({}, "", took_ms=answer.get("took_ms", 0.0))
        faults.point("captured")
        state = self.state
        failed = ""
        for root, one in answer["switched"].items():
            if one["error"]:
                failed = f"{root}: {one['error']}"
                continue
            captured.fresh.append(one["layer"])
            stack = [one["layer"], *state.stacks.get(root, [])]
            captured.stacks[root] = stack
            if one["upper"] != state.uppers.get(root):
                state.stacks[root] = stack
            self._note(captured, root, one)
        self._take_uppers({**state.uppers, **answer["uppers"]})
        if answer["root_layer"]:
            captured.fresh.append(answer["root_layer"])
            state.root_layer = answer["root_layer"]
        captured.root_layer = state.root_layer
        for root, stack in state.stacks.items():
            if stack:
                captured.stacks.setdefault(root, list(stack))
        self._unsynced += captured.fresh
        if captured.fresh:
            state.before = {}  # the session has gone on since
            self._write()
        if failed:
            raise SandboxError(failed)
        return captured

    @staticmethod
    def _note(captured: Captured, root: str, one: Mapping[str, Any]) -> None:
        if one["held_by"]:
            captured.notes.append(
                (
                    "copied",
                    root,
                    f"{', '.join(one['held_by'][:3])} works in it, so its changes were copied",
                )
            )

    async def sync(self) -> None:
        """Wait until all layers are on the disk; only then may the database name them."""
        if self._unsynced:
            waiting = list(self._unsynced)
            await asyncio.to_thread(self._sync_all)
            faults.point("synced")
            self.state.synced += waiting
            self.directory.write(self.state, durable=True)
            self._on_disk = self._synced_names = self.state.names()
            self._unsynced = [layer for layer in self._unsynced if layer not in waiting]
            self.directory.keep_room()

    # -- restoring --------------------------------------------------------------------------

    def missing(self, stacks: Mapping[str, Sequence[str]], root_layer: str) -> list[str]:
        """The layers that a restore would need and that are gone."""
        wanted = [layer for stack in stacks.values() for layer in self._merged(stack)]
        wanted += [root_layer] if root_layer else []
        return [layer for layer in wanted if not self.directory.exists(layer)]

    def differs(self, stacks: Mapping[str, Sequence[str]], root_layer: str) -> bool:
        """Whether a restore would change any stack (not counting what is in the uppers)."""
        return self._whole(stacks) != self._whole(self.state.stacks) or (
            root_layer != self.state.root_layer
        )

    def _whole(self, stacks: Mapping[str, Sequence[str]]) -> Stacks:
        return {root: self._merged(stacks.get(root, ())) for root in self.state.uppers}

    async def restore(
        self,
        stacks: Mapping[str, Sequence[str]],
        root_layer: str,
        *,
        executor: int = 0,
        keep: Iterable[int] = (),
        hold: int | None = None,
        follows: bool = False,
    ) -> bool:
        """Mount these; say whether anything was changed.

        follows: the workspace will be restored too, and `workspace_followed` be called when it has
        been. Until then the next start goes back to what was mounted before.

        No process but frozen ones may live, or, with hold, the executor at its other end, which is
        stopped meanwhile and opens its files again. Raises SandboxError; then all is as it was.
        """
        wanted = self._whole(stacks)
        self.directory.make_room()
        answer = await self._init.request(
            "restore",
            [] if hold is None else [hold],
            executor=executor,
            keep=list(keep),
            stacks=wanted,
            root_layer=root_layer,
        )
        faults.point("restored")
        changed: bool = answer["uppers"] != self.state.uppers
        state = self.state
        was = copy.copy(state)
        follows = follows and (changed or root_layer != state.root_layer)
        if follows:
            state.note_before()
        else:
            state.before = {}
        state.stacks = {root: stack for root, stack in wanted.items() if stack}
        self._take_uppers(answer["uppers"])
        state.root_layer = root_layer
        if follows or state != was:
            # on the disk before the workspace's journal says that it has followed: else the power
            # may go when one of them is the new state and the other the old
            self._write(durable=follows)
        return changed

    def workspace_followed(self) -> None:
        """The workspace has followed the last restore, or will not.

        Called while the workspace's journal still says so, and durable before that is removed.
        """
        if self.state.before:
            self.state.before = {}
            self._write(durable=True)

    def _merged(self, stack: Sequence[str]) -> list[str]:
        """The same with layers that were merged replaced by the one that equals them."""
        found = list(stack)
        for new, old in self.state.merged.items():
            found = replace_run(found, old, new)
        return found

    def present(self) -> Stacks:
        """The stacks as they are now, what is being written included."""
        return {
            root: [upper, *self.state.stacks.get(root, [])]
            for root, upper in self.state.uppers.items()
        }

    def is_at(self, stacks: Mapping[str, Sequence[str]], root_layer: str) -> bool:
        """Whether this is what is mounted, and nothing was written since."""
        return (
            not self.differs(stacks, root_layer)
            and all(self.directory.is_empty(upper) for upper in self.state.uppers.values())
            and not rootdir.is_changed(str(self.directory.path))
        )

    async def refresh(self) -> None:
        """Show what the host has changed below. Raises SandboxError."""
        await self._init.request("refresh")

    # -- looking ----------------------------------------------------------------------------

    def views(self, stacks: Mapping[str, Sequence[str]]) -> dict[str, Stack]:
        """What the roots look like with these layers."""
        return {
            root.path: Stack(
                [self.directory.files(layer) for layer in stacks.get(root.path, ())],
                Path(root.path),
                self.markers,
                hidden=frozenset(os.fsencode(path) for path in root.hidden),
            )
            for root in self.plan.roots
        }

    # -- upkeep -----------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Layers of the deepest stack."""
        return max(map(len, self.state.stacks.values()), default=0)

    async def upkeep(self, named: Sequence[Stacks], lock: asyncio.Lock | None = None) -> bool:
        """Merge the oldest layers of stacks that are deep, and layers that are always together.

        named: the stacks that checkpoints name. lock: see merge(). Says whether anything was
        merged. Never raises.
        """
        merged = False
        for root, stack in list(self.state.stacks.items()):
            all_stacks = [stack, *(s[root] for s in named if root in s)]
            together = [r for r in runs_together(all_stacks) if len(r) >= _WORTH_MERGING]
            if len(stack) >= DEEP:
                together = [stack[_LEFT_UNMERGED:]]
            for run in together[:1]:
                with contextlib.suppress(SandboxError):
                    await self.merge(root, run, lock)
                    merged = True
        return merged

    async def merge(self, root: str, run: Sequence[str], lock: asyncio.Lock | None = None) -> str:
        """Make one layer that equals a run of others; they stay until nothing refers to them.

        lock: the session's, if the caller does not hold it. Layers do not change, so only the
        exchange needs it: no cell waits for a merge. Raises SandboxError; then nothing has changed.
        """
        answer = await self._init.request("merge", layers=list(run))
        new: str = answer["layer"]
        async with lock or contextlib.nullcontext():
            if not self.directory.exists(new):
                raise SandboxError("The merged layer was collected before it was used.")
            await self._init.request("merged", root=root, old=list(run), new=new)
            self.state.merged[new] = list(run)
            self.state.stacks[root] = replace_run(self.state.stacks.get(root, []), run, new)
            self._unsynced.append(new)
            self._write()
        faults.point("merged")
        return new

    def rewritten(self, stacks: Mapping[str, Sequence[str]]) -> Stacks:
        """Stacks as checkpoints should name them from now on, so that merged layers can go."""
        return {root: self._merged(stack) for root, stack in stacks.items()}

    async def collect(self, referenced: Iterable[str]) -> None:
        """Delete the layers that no checkpoint and no mount refers to."""
        state = self.state
        wanted = {*referenced, *state.names(), *self._on_disk, *self._synced_names}
        wanted = wanted.union(*self._mounted.values())
        gone = [
            id for id in self.directory.all_layers() if id not in wanted and not id.endswith(ASIDE)
        ]
        await asyncio.to_thread(self.directory.remove_layers, gone)
        state.merged = {new: old for new, old in state.merged.items() if new in wanted}
        state.synced = [id for id in state.synced if id in wanted]

    def forget(self) -> None:
        """The timeline is gone: delete everything. The sandbox must be down."""
        with contextlib.suppress(OSError):
            self.directory.remove()
