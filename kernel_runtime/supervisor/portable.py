"""What the portable copies are good for beside a whole restore.

Single variables, resuming after the kernel is gone, and the proof that they can be read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from kernel_runtime.blob_channel import ChannelError
from kernel_runtime.engines.dill.carrying import may_be_missing
from kernel_runtime.errors import (
    BadRequest,
    CheckpointRefused,
    RestoreFailed,
    RestoreRefused,
    UnknownCheckpoint,
)
from kernel_runtime.supervisor.durable import lost_lines
from kernel_runtime.supervisor.request import Request
from kernel_runtime.supervisor.restore_request import RestoreRequest
from kernel_runtime.supervisor.writing_order import KIND, is_written
from kernel_runtime.timeline.model import Checkpoint
from kernel_runtime.timeline.report import title
from kernel_runtime.timeline.text import plural
from kernel_runtime.timeline.variables import differs_elsewhere

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session


_LOOK_S: Final = 30.0


class Portable:
    """Commands on the namespace captures of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tried: str | None = None
        self._tried_at: datetime | None = None
        """Which checkpoint the schedule has verified last, and when."""

    # Single variables

    async def bring(
        self, target: Checkpoint, names: Sequence[str], request: Request | None
    ) -> dict[str, Any]:
        """Bring variables of a checkpoint into the present; all else stays.

        The caller sees to it that no other cell runs. Raises RestoreRefused (nothing was done) or
        RestoreFailed (the safety checkpoint holds the state before).
        """
        session = self._session
        await session.durability.now(target)
        manifest = await session.durability.manifest(target)
        _check_names(target, manifest, names)
        async with session.lock:
            executor = session.executor
            if executor is None or not executor.alive:
                raise RestoreRefused("There is no process to bring them to. Nothing was changed.")
            safety = await session.checkpoints.take(
                "safety",
                request=request,
                comment=f"before {', '.join(names)} of #{target.number}",
            )
            loaded = await session.durability.load(executor, manifest, names)
            await session.checkpoints.after_part(f"with variables of #{target.number}", None)
        if loaded.lost:
            raise RestoreFailed(
                f"{'; '.join(f'{name}: {why}' for name, why in loaded.lost)}. "
                f"%restore {safety.checkpoint.number} brings the state before back."
            )
        lines = [
            f"{', '.join(names)} as {'it was' if len(names) == 1 else 'they were'} at "
            f"{title(session.timeline.record(target))}; all else stays as it is "
            f"(before: #{safety.checkpoint.number})",
            *lost_lines(loaded),
        ]
        return {
            "checkpoint": session.timeline.record(target),
            "safety": session.timeline.record(safety.checkpoint),
            "names": list(names),
            "notices": loaded.notices,
            "text": "\n".join(lines),
        }

    # Resuming

    def resumable(self) -> Checkpoint | None:
        """The newest state from before this kernel whose variables can be brought back."""
        session = self._session
        for checkpoint in reversed(session.timeline.present_branch()):
            if checkpoint.coordinate.epoch != session.epoch and checkpoint.has_durable_session:
                return checkpoint
        return None

    def resume_target(self) -> Checkpoint:
        """Likewise. Raises UnknownCheckpoint where there is none."""
        found = self.resumable()
        if found is None:
            raise UnknownCheckpoint(
                "of an earlier kernel",
                "No state from before this kernel was written to the disk "
                "(`%timetravel config durability`).",
            )
        return found

    async def resume(
        self, request: Request | None, *, force: bool, reseed: bool = False
    ) -> dict[str, Any]:
        """Go on from the newest such state; files stay as they are.

        Raises what a restore raises, and UnknownCheckpoint.
        """
        return await self._go_on(self.resume_target(), request, force, reseed)

    async def _go_on(
        self, target: Checkpoint, request: Request | None, force: bool, reseed: bool = False
    ) -> dict[str, Any]:
        asked = RestoreRequest(only="process", force=force, reseed=reseed)
        return await self._session.restores.restore(target, asked, request=request, resumes=True)

    async def at_start(self) -> None:
        """Resume, or say what can be resumed. Never raises."""
        session = self._session
        wanted = session.persistence.take_resume()
        target = None
        with contextlib.suppress(UnknownCheckpoint):
            target = session.timeline.resolve(wanted) if wanted else self.resumable()
        if target is None or not target.has_durable_session:
            return
        if not wanted and session.config.resume == "ask":
            if target.variables:
                name = title(session.timeline.record(target))
                session.router.say_next(
                    f"This notebook's last session can go on from {name}: `%timetravel resume`."
                )
            return
        try:
            result = await self._go_on(target, None, True)
        except (RestoreRefused, RestoreFailed) as error:
            session.router.say_next(f"The last session could not be resumed: {error}")
        else:
            session.router.say_next(result["text"])

    # Proof

    async def verify(self, targets: Sequence[Checkpoint]) -> dict[str, Any]:
        """Load captures for real in a scratch process; compare with what was recorded.

        The date goes onto each capture that held. The live session is not touched.
        """
        checked = []
        for target in targets:
            problems = await self._verify(target)
            session = self._session
            capture = session.timeline[target.id].capture(KIND)
            if capture is not None:
                details = {**capture.details, "verified_at": session.now().isoformat()}
                if problems:
                    details.pop("verified_at")
                session.captures.put(target.id, replace(capture, details=details))
            checked.append(
                {
                    "checkpoint": session.timeline.record(session.timeline[target.id]),
                    "problems": problems,
                }
            )
        return {"verified": checked, "text": _verified_text(checked)}

    async def on_schedule(self) -> None:
        """Verify the newest state on the disk now and then, if the user says so."""
        session = self._session
        while True:
            await asyncio.sleep(_LOOK_S)
            hours = session.config.verify_every
            newest = next((c for c in reversed(list(session.timeline)) if is_written(c)), None)
            if not hours or newest is None or not session.router.idle:
                continue
            # one that did not hold is told of once, and tried again as late as one that did
            tried = self._tried_at if self._tried == newest.id else None
            since = max(filter(None, (_verified_at(newest), tried)), default=None)
            if since is not None and session.now() - since < timedelta(hours=hours):
                continue
            self._tried, self._tried_at = newest.id, session.now()
            for one in (await self.verify([newest]))["verified"]:
                if one["problems"]:
                    session.router.say_next(
                        f"{title(one['checkpoint'])} would not come back whole from the disk: "
                        f"{'; '.join(one['problems'])}. It is held in memory as long as the "
                        "kernel runs; `%checkpoint` writes another one."
                    )

    async def _verify(self, target: Checkpoint) -> list[str]:
        durability = self._session.durability
        capture = target.capture(KIND)
        if capture is None or capture.state != "ready":
            return ["its variables are not on the disk"]
        try:
            manifest = await durability.manifest(target)
            loaded = await durability.load_in_scratch(manifest)
        except (RestoreRefused, CheckpointRefused, ChannelError) as error:
            return [str(error)]
        known = may_be_missing(manifest)
        problems = [f"{name}: {why}" for name, why in loaded.lost if name not in known]
        here = set(loaded.summaries)
        # what is open in a file, say, can be tried with the files of the checkpoint only
        lost = known | {name for name, _ in loaded.lost} | set(loaded.untried)
        for name, recorded in target.variables.items():
            if name in lost or name.startswith("$"):
                continue
            if name not in here:
                problems.append(f"{name}: it is missing")
            elif differs_elsewhere(recorded, loaded.summaries[name]):
                problems.append(f"{name}: it has another value than the session had")
        return problems


def _verified_at(checkpoint: Checkpoint) -> datetime | None:
    capture = checkpoint.capture(KIND)
    told = capture.details.get("verified_at") if capture is not None else None
    return datetime.fromisoformat(told) if told else None


def _check_names(target: Checkpoint, manifest: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise BadRequest or RestoreRefused for what cannot be brought."""
    if not names:
        raise BadRequest("Name the variables: %restore 12 --vars df,model. Nothing was changed.")
    held = {
        name
        for unit in manifest["units"]
        if unit["kind"] in ("variables", "definitions")
        for name in unit["names"]
    }
    lost = dict(manifest["lost"])
    for name in names:
        if name in lost:
            raise RestoreRefused(
                f"{name} of #{target.number} was not kept: {lost[name]}. Nothing was changed."
            )
        if name not in held:
            raise BadRequest(
                f"#{target.number} has no variable {name!r}. Nothing was changed; "
                f"`%timeline {target.number}` lists them."
            )


def _verified_text(checked: Sequence[Mapping[str, Any]]) -> str:
    if not checked:
        return "No checkpoint has its variables on the disk."
    lines = []
    for one in checked:
        problems = one["problems"]
        lines.append(f"{title(one['checkpoint'])}: {'; '.join(problems) if problems else 'held'}")
    bad = sum(bool(one["problems"]) for one in checked)
    sums = f"{plural(len(checked), 'checkpoint')} loaded and compared, "
    return "\n".join([*lines, sums + (f"{bad} with problems" if bad else "all held")])
