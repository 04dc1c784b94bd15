"""The layers of a session that no kernel has mounted: compared, put back, merged, deleted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernel_runtime.engines.overlay.comparison import compare
from kernel_runtime.engines.overlay.directory import EnvironmentDirectory
from kernel_runtime.engines.overlay.engine import OverlayEngine, Stacks
from kernel_runtime.engines.overlay.markers import TRUSTED
from kernel_runtime.engines.overlay.merge import merge
from kernel_runtime.engines.overlay.mounts import new_layer_id
from kernel_runtime.engines.overlay.plan import Plan, RootPlan
from kernel_runtime.engines.overlay.runs import runs_together
from kernel_runtime.errors import EnvironmentRefused, SandboxError
from kernel_runtime.timeline import Capture, Checkpoint


class _NoInit:
    """There are no mounts."""

    async def request(self, op: str, pass_fds: Sequence[int] = (), **fields: Any) -> dict[str, Any]:
        """Raises SandboxError."""
        raise SandboxError(f"{op}: nothing is mounted")


class StoredEnvironment(OverlayEngine):
    """One session's environment directory. Nothing else may be using it, except for looking."""

    def __init__(self, path: Path) -> None:
        """Raises EnvironmentRefused if it cannot be read."""
        directory = EnvironmentDirectory(path)
        state = directory.read()
        user = state.markers != TRUSTED.prefix if state.markers else os.geteuid() != 0
        roots = [RootPlan(root, True) for root in sorted({*state.stacks, *state.uppers})]
        super().__init__(directory, _NoInit(), Plan(roots=roots, userxattr=user))
        self.state = state

    # -- looking ----------------------------------------------------------------------------

    def now(self) -> Stacks:
        """The stacks that the next kernel would start with."""
        return {
            root: [
                *([upper] if (upper := self.state.uppers.get(root)) and self._holds(upper) else []),
                *self.state.stacks.get(root, []),
            ]
            for root in {*self.state.stacks, *self.state.uppers}
        }

    def _holds(self, upper: str) -> bool:
        return self.directory.exists(upper) and not self.directory.is_empty(upper)

    def stacks_of(self, capture: Capture) -> Stacks:
        """The layers of a capture by the names that they have now."""
        return self.rewritten(capture.details.get("stacks", {}))

    def differences(self, before: Stacks, after: Stacks) -> dict[str, Any]:
        """As docs/protocol.md has them. Raises OSError."""
        known = {root.path for root in self.plan.roots}
        for root in sorted({*before, *after} - known):
            self.plan.roots.append(RootPlan(root, True))
        return compare(self, before, after)

    def is_now(self, capture: Capture) -> bool:
        """Whether the next kernel would start with just this."""
        wanted = self.stacks_of(capture)
        now = self.now()
        same = all(now.get(r, []) == wanted.get(r, []) for r in {*now, *wanted})
        return same and capture.details.get("root_layer", "") == self.state.root_layer

    # -- changing ---------------------------------------------------------------------------

    def settle(self) -> dict[str, str]:
        """Make what was being written when the kernel ended layers. Returns what was put aside."""
        told: dict[str, str] = {}
        self._take_up(self.state, told)
        self._sync_all()
        layers = {layer for stack in self.state.stacks.values() for layer in stack}
        self.state.synced = sorted({*self.state.synced, *layers})
        self.state.running = False
        self.directory.write(self.state, durable=True)
        return told

    def present_capture(self) -> Capture:
        """The present state, after `settle`."""
        stacks = {root: list(stack) for root, stack in self.state.stacks.items() if stack}
        details = {"stacks": stacks, "root_layer": self.state.root_layer, "fresh": []}
        return Capture("filesystem", "overlay", "ready", details=details)

    def put(self, capture: Capture, *, follows: bool) -> None:
        """Let the next kernel start with this. Raises EnvironmentRefused if layers are gone.

        follows: the workspace will be restored too; until `workspace_followed` is called the next
        kernel starts with what was there before.
        """
        root_layer = str(capture.details.get("root_layer", ""))
        gone = self.missing(capture.details.get("stacks", {}), root_layer)
        if gone:
            raise EnvironmentRefused(
                f"The environment cannot be brought back: its layer {gone[0]} is gone from the "
                "store. Nothing was changed."
            )
        self.state.before = {}
        if follows:
            self.state.note_before()
        self.state.stacks = {r: list(s) for r, s in self.stacks_of(capture).items() if s}
        self.state.root_layer = root_layer
        self.state.uppers = {}
        self.directory.write(self.state, durable=True)

    def merge_all(self, captures: Iterable[Capture]) -> int:
        """Make one layer of each run that all stacks have together; say how many runs.

        The layers stay until `collect_now`; the captures are to be named anew by `rewritten`.
        """
        count = 0
        for run in self._runs(captures):
            with suppress(OSError):
                self._merge_run(run)
                count += 1
        if count:
            self._sync_all()
            for root, stack in self.state.stacks.items():
                self.state.stacks[root] = self._merged(stack)
            self.directory.write(self.state, durable=True)
        return count

    def _runs(self, captures: Iterable[Capture]) -> list[list[str]]:
        stacks = [self.stacks_of(capture) for capture in captures]
        return [
            run
            for root, present in self.state.stacks.items()
            for run in runs_together([present, *(s[root] for s in stacks if root in s)])
        ]

    def covered_room(self, captures: Iterable[Capture]) -> int:
        """Bytes of files that `merge_all` would drop, since a newer layer has them too."""
        size = 0
        for run in self._runs(captures):
            seen: set[str] = set()
            for layer in run:
                top = str(self.directory.files(layer))
                here: set[str] = set()
                for parent, _, files in os.walk(top):
                    for name in files:
                        path = f"{parent}/{name}"
                        here.add(path[len(top) :])
                        if path[len(top) :] in seen:
                            with suppress(OSError):
                                size += os.lstat(path).st_blocks * 512
                seen |= here
        return size

    def _merge_run(self, run: Sequence[str]) -> None:
        new = new_layer_id()
        os.mkdir(self.directory.layers / new, 0o700)
        merge(
            [self.directory.files(layer) for layer in run],
            self.directory.files(new),
            self.markers,
            durable=False,
        )
        self.state.merged[new] = list(run)
        self.state.synced.append(new)

    def unneeded(self, captures: Iterable[Capture]) -> list[str]:
        """Layers that neither these nor the next kernel need: those put aside, half-made ones."""
        wanted = {self.state.root_layer, *self.state.uppers.values()}
        for stacks in (self.state.stacks, *(self.stacks_of(capture) for capture in captures)):
            wanted.update(layer for stack in stacks.values() for layer in stack)
        for capture in captures:
            wanted.add(str(capture.details.get("root_layer", "")))
        return [layer for layer in self.directory.all_layers() if layer not in wanted]

    def delete(self, layers: Sequence[str]) -> None:
        """Delete layers, then forget them."""
        self.directory.remove_layers(layers)
        gone = set(layers)
        self.state.merged = {n: old for n, old in self.state.merged.items() if n not in gone}
        self.state.synced = [layer for layer in self.state.synced if layer not in gone]
        self.directory.write(self.state, durable=True)


def overlay_of(checkpoint: Checkpoint) -> Capture | None:
    """The capture of the environment that a checkpoint holds."""
    capture = checkpoint.capture("filesystem", engine="overlay")
    return capture if capture is not None and capture.state == "ready" else None
