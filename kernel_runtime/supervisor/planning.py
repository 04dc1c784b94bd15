"""What a restore will do, checked before anything is done."""

from __future__ import annotations

import asyncio
from dataclasses import field
from typing import TYPE_CHECKING, Any

from kernel_runtime.engines.base import Frozen
from kernel_runtime.engines.workspace.errors import WorkspaceError
from kernel_runtime.engines.workspace.model import ALL_FILES, Part, RestorePlan
from kernel_runtime.engines.workspace.names import printable
from kernel_runtime.engines.workspace.protect import DOCUMENT
from kernel_runtime.errors import RestoreRefused, UnknownCheckpoint
from kernel_runtime.later import dataclass
from kernel_runtime.store.digests import BlobError
from kernel_runtime.store.errors import StoreError
from kernel_runtime.supervisor.alternatives import way_to_another
from kernel_runtime.supervisor.container_layer import NAME, CommitRefused, capture_of
from kernel_runtime.supervisor.images import images_of
from kernel_runtime.supervisor.tree_captures import tree_of
from kernel_runtime.timeline.model import Capture, Checkpoint

if TYPE_CHECKING:
    from kernel_runtime.supervisor.leaving import Leaving
    from kernel_runtime.supervisor.session import Session

TELL_S = 0.02
"""Seconds that a reply waits for what a restore changes outside of the workspace."""


@dataclass
class Plan:
    """What a restore will do, checked."""

    target: Checkpoint
    frozen: Frozen | None
    files: RestorePlan | None
    environment: Capture | None = None
    layer: Capture | None = None
    """Of the container's own layer, where another container has to take this one's place."""
    tree: Capture | None = None
    """Of the process with its children, on the disk."""
    images: list[Capture] = field(default_factory=list)
    """Of the process, on the disk, where there is no frozen one any more; the best one first."""
    namespace: dict[str, Any] | None = None
    """The manifest of the portable copy: for want of the process itself, or if it fails."""
    warnings: list[str] = field(default_factory=list)
    resumes: bool = False
    reseeds: bool = False
    lost: set[str] = field(default_factory=set)
    """Variables that the target had and the restore did not bring."""
    tell_s: float = TELL_S
    is_whole: bool = False
    """Whether it fails where a variable that was written cannot be loaded."""
    leaving: Leaving | None = None
    """The executor, where it got ready to leave in time."""
    brought_by: str | None = None
    """The engine whose capture of the memory was brought back; known afterwards."""

    @property
    def brings_process(self) -> bool:
        """Whether another process takes the executor's place."""
        held = (self.frozen, self.tree, self.namespace)
        return bool(self.images) or any(one is not None for one in held)


def partial_way(target: Checkpoint) -> str:
    """How to do without files whose content is damaged."""
    return (
        f"Where content in the store is damaged or gone, `%restore {target.number} --partial` "
        "brings all the rest and leaves those files as they are."
    )


def is_damage(error: BaseException | None) -> bool:
    """Whether what the store has lost or cannot read is the cause."""
    while error is not None and not isinstance(error, BlobError):
        error = error.__cause__
    return error is not None


class Planner:
    """Finds out what can be restored. Changes nothing."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def target(self, spec: Any, undo: bool) -> Checkpoint:
        """Return the checkpoint that is meant. Raises UnknownCheckpoint."""
        timeline = self._session.timeline
        if not undo:
            return timeline.resolve(spec)
        if timeline.last_safety is None:
            raise UnknownCheckpoint("--undo", "Nothing was restored yet, so nothing can be undone.")
        return timeline.last_safety

    def check_memory(self, target: Checkpoint) -> None:
        """See that a checkpoint's memory can be brought back. Raises RestoreRefused."""
        if target.id in self._session.frozen or target.has_durable_session:
            return
        namespace = target.capture("namespace")
        capture = target.capture("process")
        files = target.capture("filesystem", engine="workspace")
        why = (capture.error or capture.state) if capture else "it has none"
        if namespace is not None:
            why += f"; its variables were not written: {namespace.error or namespace.state}"
        rest = (
            f" Its files are held: %restore {target.number} --only files."
            if files is not None and files.state == "ready"
            else ""
        )
        raise RestoreRefused(
            f"The process of #{target.number} cannot be brought back: {why}.{rest} "
            "Nothing was changed."
        )

    async def plan(
        self,
        target: Checkpoint,
        only: str | None,
        part: Part = ALL_FILES,
        partial: bool = False,
    ) -> Plan:
        """Check everything that can be checked first. Raises RestoreRefused, which names the
        nearest checkpoint that is whole where content of this one is damaged or gone.

        part: which files of the workspace are meant. partial: files whose content is damaged or
        gone are left as they are, and are told.
        """
        try:
            return await self._plan(target, only, part, partial)
        except RestoreRefused as error:
            if not is_damage(error):
                raise
            other = await way_to_another(self._session, target, only)
            raise RestoreRefused(f"{error}{other}") from error

    async def _plan(self, target: Checkpoint, only: str | None, part: Part, partial: bool) -> Plan:
        """Raises RestoreRefused."""
        session = self._session
        plan = Plan(target, None, None)
        name = f"#{target.number}"
        files = target.capture("filesystem", engine="workspace")
        if only != "files":
            self.check_memory(target)
            await self.plan_memory(plan)
        if only != "process" and session.environment.enabled:
            plan.environment = session.environment.capture_of(target)
            if plan.environment is None:
                layers = target.capture("filesystem", engine="overlay")
                why = (layers.error or layers.state) if layers else "it was not captured"
                plan.warnings.append(f"the environment stays as it is: {why}")
        if only != "process" and session.layer.enabled:
            await self._plan_layer(plan)
        if only != "process" and session.files.enabled:
            if files is None or files.state != "ready" or files.ref is None:
                why = (files.error or files.state) if files else "they were not captured"
                if only == "files":
                    raise RestoreRefused(
                        f"The files of {name} cannot be brought back: {why}. Nothing was changed."
                    )
                plan.warnings.append(f"the files stay as they are: {why}")
            else:
                try:
                    plan.files = await session.files.plan(files.ref, part, allow_missing=partial)
                except WorkspaceError as error:
                    raise RestoreRefused(
                        f"The files of {name} cannot be brought back. {error} Nothing was changed; "
                        f"to take memory alone: %restore {target.number} --only process."
                    ) from error
                except OSError as error:
                    raise RestoreRefused(
                        f"The files of {name} cannot be brought back: {error.filename}: "
                        f"{error.strerror}. Nothing was changed; remove the cause, or take memory "
                        f"alone: %restore {target.number} --only process."
                    ) from error
                if plan.files.problems:
                    path, why = plan.files.problems[0]
                    more = len(plan.files.problems) - 1
                    way = "" if partial else f" {partial_way(target)}"
                    raise RestoreRefused(
                        f"The files of {name} cannot be brought back: {printable(path)}: {why}"
                        f"{f' (and {more} more)' if more else ''}. Nothing was changed; remove "
                        f"the cause, or take memory alone: %restore {target.number} --only process."
                        + way
                    )
                plan.warnings += [f"{printable(p)}: {why}" for p, why in plan.files.warnings]
                plan.warnings += [
                    f"{printable(one.path)} stays as it is: {one.reason}"
                    for one in plan.files.kept
                    if one.reason != DOCUMENT
                ]
        return plan

    async def _plan_layer(self, plan: Plan) -> None:
        """The container's own layer. Raises RestoreRefused where it cannot be looked at."""
        layer = self._session.layer
        capture = capture_of(plan.target)
        if capture is None:
            found = plan.target.capture("filesystem", engine=NAME)
            why = (found.error or found.state) if found else "it was not committed"
            plan.warnings.append(f"the container's own files stay as they are: {why}")
            return
        try:
            if not await layer.is_at(capture):
                plan.layer = capture
        except CommitRefused as error:
            raise RestoreRefused(f"{error} Nothing was changed.") from error

    async def plan_memory(self, plan: Plan, *, from_disk: bool = False) -> None:
        """The most faithful captures of the target's memory. Raises RestoreRefused.

        from_disk: the frozen process that there is could not be woken.
        """
        session = self._session
        plan.frozen = None if from_disk else session.frozen.get(plan.target.id)
        if session.engine.name == "fork":
            await self._plan_tree(plan)
        if plan.frozen is not None and session.engine.can_copy:
            return  # a process; else what stands for an image, which may be damaged
        stored = session.under_dmtcp.stored(plan.target) if plan.frozen is None else None
        plan.frozen = plan.frozen or stored
        if session.engine.name == "fork":  # whose frozen processes they become
            plan.images = images_of(plan.target)
        if plan.images or stored is not None:
            try:
                await session.persistence.authenticate(session.timeline, plan.target)
            except StoreError as error:
                raise RestoreRefused(f"{error} Nothing was changed.") from error
        if plan.images:
            await self._compare_machine(plan)
        try:
            plan.namespace = await session.durability.manifest_if_any(plan.target)
        except RestoreRefused:
            if not plan.brings_process:
                raise
        other = self._other_engine(plan.target)
        if not plan.brings_process:
            raise RestoreRefused(f"{other} Nothing was changed.")
        if other and plan.frozen is None and not plan.images:
            plan.warnings.append(other)

    async def _plan_tree(self, plan: Plan) -> None:
        """The capture that holds child processes too, if there is one that can be relied on."""
        session = self._session
        await session.trees.settled(plan.target.id)
        plan.target = session.timeline[plan.target.id]
        plan.tree = tree_of(plan.target)
        if plan.tree is None:
            return
        try:
            await session.persistence.authenticate(session.timeline, plan.target)
        except StoreError as error:
            plan.tree = None
            plan.warnings.append(f"child processes were not brought back: {error}")

    def _other_engine(self, target: Checkpoint) -> str:
        """In words, where a process is held in a way that is not this kernel's; else ""."""
        engine = self._session.engine.name
        ready = [c for c in target.captures if c.kind == "process" and c.state == "ready"]
        made_by = [c.engine for c in ready]
        if (
            not made_by
            or engine in made_by
            or (engine == "fork" and (images_of(target) or tree_of(target)))
        ):
            return ""
        needed = "dmtcp" if "dmtcp" in made_by else "fork"
        return (
            f"The process of #{target.number} was captured by {made_by[0]}, and this kernel uses "
            f"{engine}: start the kernel with --Supervisor.process_engine={needed} to have it back."
        )

    async def _compare_machine(self, plan: Plan) -> None:
        """Do without an image that this machine cannot load. Raises RestoreRefused if it is all
        that there is."""
        try:
            why = await asyncio.to_thread(self._session.images.misfits, plan.target)
        except StoreError:
            return  # loading it says what is wrong, and takes the variables
        if not why:
            return
        namespace = plan.target.capture("namespace")
        if namespace is None or namespace.state != "ready":
            raise RestoreRefused(
                f"The process of #{plan.target.number} was made on another machine: "
                f"{'; '.join(why)}. Its variables were not written. Nothing was changed."
            )
        plan.images = []
        plan.warnings.append(f"the process itself does not come back here: {'; '.join(why)}")
