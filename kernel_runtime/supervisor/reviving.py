"""Processes that end, and those that come back: from the most faithful capture that can be used."""

from __future__ import annotations

import asyncio
import re
from typing import Final

from kernel_runtime.engines.base import Frozen
from kernel_runtime.engines.dill.carrying import may_be_missing
from kernel_runtime.engines.dill.engine import NAME as DILL
from kernel_runtime.engines.dill.engine import Loaded
from kernel_runtime.engines.loaded import behind_s
from kernel_runtime.errors import RestoreFailed, RestoreRefused, SandboxError
from kernel_runtime.supervisor.alternatives import way_to_another
from kernel_runtime.supervisor.checkpoints import Taken
from kernel_runtime.supervisor.durable import lost_lines
from kernel_runtime.supervisor.executors import Executor
from kernel_runtime.supervisor.planning import Plan, Planner
from kernel_runtime.supervisor.tree_captures import tree_of
from kernel_runtime.supervisor.writing_order import KIND
from kernel_runtime.timeline.model import Capture, Checkpoint

_BLOB: Final = re.compile(r"Blob [0-9a-f]+ (?:is damaged|cannot be read)")
"""How the reason of a variable that could not be read begins (`store.digests`)."""
PORTABLE = (
    "the process itself is gone: a fresh one has the variables of the copy on the disk, without "
    "threads, child processes and what is listed here"
)

_LOST_SHOWN = 8
_EXIT_S = 30.0


class Reviver(Planner):
    """Carries out the part of a plan that is about processes. The caller holds the queue."""

    async def stop_processes(self) -> None:
        """End everything inside but the frozen processes; return when their ids are free."""
        session = self._session
        executor = session.executor
        if executor is not None:
            executor.drain()
            executor.close()
        try:
            async with session.durability.starting, session.engine.starting:
                kept = session.captures.frozen_pids()
                await asyncio.wait_for(session.sandbox.kill_all_but(kept), _EXIT_S)
        except asyncio.TimeoutError:
            raise SandboxError("A process inside the sandbox does not end.") from None
        session.sandbox.forget_exits()
        session.environment.processes_ended()
        session.executor = None

    async def revive(self, plan: Plan) -> Executor:
        """The process that a plan brings back, with its children. Raises RestoreFailed."""
        if plan.tree is None:
            return await self._alone(plan)
        try:
            executor = await self.with_children(plan.target, plan.tree)
            plan.brought_by = plan.tree.engine
            return executor
        except RestoreFailed as error:
            plan.tree = None
            if not plan.brings_process:
                raise
            plan.warnings.append(f"child processes were not brought back: {error}")
            try:
                return await self._alone(plan)
            except RestoreFailed as another:
                raise RestoreFailed(f"{another} With its child processes: {error}") from another

    async def _alone(self, plan: Plan) -> Executor:
        """The process that a plan brings back, without children. Raises RestoreFailed."""
        if plan.frozen is not None and self._session.engine.can_copy:
            try:
                executor = await self._from_frozen(plan)
                plan.brought_by = self._session.engine.name
                return executor
            except RestoreFailed as error:
                await self._plan_from_disk(plan, error)
        ways = [None] if plan.frozen is not None else list(plan.images)
        for left, image in zip(reversed(range(len(ways))), ways):
            try:
                executor = await self._exactly(plan, image)
                plan.brought_by = image.engine if image is not None else self._session.engine.name
                return executor
            except RestoreFailed as error:
                if left:
                    plan.warnings.append(f"another image of it was taken: {error}")
                    continue
                if plan.namespace is None:
                    raise
                plan.warnings.append(f"the process itself could not be brought back: {error}")
                await self.stop_processes()  # what may have come up half way
        return await self.portably(plan)

    async def _from_frozen(self, plan: Plan) -> Executor:
        """Wake the frozen process, again where what was woken was killed. Raises RestoreFailed."""
        try:
            return await self._exactly(plan, None)
        except RestoreFailed as error:
            if not isinstance(error.__cause__, (ChildProcessError, ConnectionError)):
                raise
            await self.stop_processes()
            return await self._exactly(plan, None)

    async def _plan_from_disk(self, plan: Plan, error: RestoreFailed) -> None:
        """Plan for what is on the disk, in place of a frozen process that could not be woken: that
        is kept, as it may be another time. Raises RestoreFailed where nothing is on the disk."""
        await self.stop_processes()  # what may have come up half way
        try:
            await self.plan_memory(plan, from_disk=True)
        except RestoreRefused as refused:
            raise RestoreFailed(f"{error} {refused}") from error
        plan.tree = None  # was tried before
        plan.warnings.append(f"what was written of it to the disk was taken: {error}")

    async def portably(self, plan: Plan) -> Executor:
        """A fresh process with the variables of a plan's copy; what is lost is in its warnings.

        Raises RestoreFailed.
        """
        session = self._session
        assert plan.namespace is not None
        seed = plan.namespace.get("hash_seed") or session.hash_seed
        executor = await session.launcher.fresh(seed)
        loaded = await session.durability.load(executor, plan.namespace)
        if plan.is_whole:
            _check_whole(plan, loaded)
        session.hash_seed = seed
        plan.lost = {name for name, _ in loaded.lost}
        plan.warnings += [
            PORTABLE,
            *self._clock(plan.target),
            *session.carrying.loaded(plan.namespace, loaded),
        ]
        plan.warnings += lost_lines(loaded)
        plan.brought_by = DILL
        # what lacks a module lacks it in each checkpoint: looking for another would only take time
        damaged = {name for name, why in loaded.lost if _BLOB.search(why)}
        if damaged and (other := await way_to_another(session, plan.target, "process", damaged)):
            plan.warnings.append(f"{', '.join(sorted(damaged))}:{other}")
        return executor

    def _clock(self, checkpoint: Checkpoint) -> list[str]:
        """What to say of the monotonic clock, where it could not be put ahead."""
        capture = checkpoint.capture(KIND)
        behind = behind_s(capture.details, self._session.sandbox) if capture is not None else 0
        if not behind:
            return []
        return [
            f"the monotonic clock is {behind:.0f} s behind that of the checkpoint (another "
            "machine, or a reboot): what a variable holds of it lies ahead"
        ]

    async def with_children(self, checkpoint: Checkpoint, tree: Capture) -> Executor:
        """The process and its children. Raises RestoreFailed; then nothing of them is left."""
        try:
            executor = await self._session.trees.wake(checkpoint, tree)
        except (RestoreFailed, SandboxError) as error:
            await self.stop_processes()  # what may have come up half way
            raise RestoreFailed(str(error)) from error
        await self._session.carrying.woke(checkpoint.id)
        return executor

    async def with_children_if_held(self, checkpoint: Checkpoint) -> Executor | str:
        """Likewise where a checkpoint has them; else why not, "" where it has none."""
        session = self._session
        await session.trees.settled(checkpoint.id)
        tree = tree_of(session.timeline[checkpoint.id])
        if tree is None:
            return ""
        try:
            return await self.with_children(checkpoint, tree)
        except RestoreFailed as error:
            session.log.warning("%s It is brought back without child processes.", error)
            return str(error)

    async def _exactly(self, plan: Plan, image: Capture | None) -> Executor:
        """The process as it was. image: none for a frozen one."""
        session = self._session
        id = plan.target.id
        if plan.frozen is not None:
            executor = await self.wake(plan.frozen)
            if not session.engine.can_copy:  # what an image was restarted from can be used again
                session.frozen[id] = plan.frozen
            return executor
        assert image is not None
        frozen = await session.images.load(plan.target, image)
        old = session.frozen.pop(id, None)
        session.frozen[id] = frozen
        try:
            executor = await self.wake(frozen)
        except RestoreFailed:
            del session.frozen[id]
            if old is not None:
                session.frozen[id] = old
            await session.engine.drop(frozen)
            raise
        if old is not None:
            await session.engine.drop(old)
        session.captures.set_process_state(id, "ready", None)
        plan.warnings += [
            f"{note.kind}: {note.subject}{f': {note.detail}' if note.detail else ''}"
            for note in frozen.not_captured  # what loading it found missing
        ]
        return executor

    async def wake(self, frozen: Frozen) -> Executor:
        """Wake a frozen process; return the executor. Raises RestoreFailed."""
        executor = self._session.launcher.new()
        await executor.wake(self._session.engine, frozen)
        await self._session.carrying.woke(frozen.checkpoint)
        return executor

    async def present(self, safety: Taken) -> Executor:
        """The process of a safety checkpoint, with its children. Raises RestoreFailed."""
        found = await self.with_children_if_held(safety.checkpoint)
        if isinstance(found, Executor):
            return found
        if safety.frozen is None:
            raise RestoreFailed("the process before had not been held")
        return await self.wake(safety.frozen)


def _check_whole(plan: Plan, loaded: Loaded) -> None:
    """Raise RestoreFailed if a variable that was written could not be loaded."""
    assert plan.namespace is not None
    known = may_be_missing(plan.namespace)
    lost = [f"{name}: {why}" for name, why in loaded.lost if name not in known]
    if lost:
        more = f" (and {len(lost) - _LOST_SHOWN} more)" if len(lost) > _LOST_SHOWN else ""
        raise RestoreFailed(
            f"not all of its variables can be loaded here: {'; '.join(lost[:_LOST_SHOWN])}{more}. "
            f"Install what is missing, or `%restore {plan.target.number} --partial` brings the "
            "others."
        )
