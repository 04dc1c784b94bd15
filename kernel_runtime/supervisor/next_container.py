"""A restore that needs another container: this supervisor ends with its own, the next one goes on.

What is asked, who waits for an answer and which requests wait is written down before; the note lies
in the store, so that a notebook whose server was killed in between finds it at its next start:

1. The target's and the present memory are on the disk, the present layer is committed (a safety
   checkpoint). Until the note is written all can be refused, and then nothing was changed.
2. This process ends, and all in the container with it. Whoever started it starts one of the
   target's commit, or, if that does not come up, one of the safety checkpoint's.
3. The supervisor in there brings files and process, and answers. If it cannot, files go back and
   step 2 is done once more, with the safety checkpoint's commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from kernel_runtime.errors import RestoreFailed, RestoreRefused, TimeTravelError
from kernel_runtime.store.errors import StoreError
from kernel_runtime.supervisor import faults
from kernel_runtime.supervisor.checkpoints import Taken
from kernel_runtime.supervisor.container_layer import CommitRefused, capture_of, image_of
from kernel_runtime.supervisor.container_notes import Notes, packed, unpacked
from kernel_runtime.supervisor.planning import Plan
from kernel_runtime.supervisor.request import Request
from kernel_runtime.supervisor.restore_request import RestoreRequest
from kernel_runtime.timeline.model import Checkpoint
from kernel_runtime.timeline.report import trial_text

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

_CLIENTS_S: Final = 10.0
"""Seconds at most that clients get to connect again; they try ten times a second."""
_LOOK_S: Final = 0.02
Answer = dict[str, Any]


class NextContainer:
    """Leaves one container and goes on in the next one. The caller of `leave` holds the queue."""

    def __init__(self, session: Session, runtime_dir: Path) -> None:
        self._session = session
        self._runtime_dir = runtime_dir
        self._note: dict[str, Any] | None = None

    # --- leaving ---------------------------------------------------------------------------------

    async def leave(
        self,
        plan: Plan,
        asked: RestoreRequest,
        request: Request | None,
        how: Mapping[str, Any] | None,
        *,
        forced: bool,
        began: float,
    ) -> NoReturn:
        """Begin the restore, and end. request: the cell that asks. how: what it is answered with;
        None where whoever asks has more to do afterwards. forced: a cell runs on, and is lost.

        began: the time of day. Raises RestoreRefused; nothing was changed.
        """
        session = self._session
        self._check(asked, how)
        assert plan.layer is not None
        has_process = session.executor is not None and session.executor.alive and not forced
        if session.rescue.active and not plan.brings_process:
            asked = replace(asked, only="files")
        if asked.only != "files":
            await session.durability.secure(plan.target)
        safety = await session.restores.take_safety(plan, request, process=has_process)
        held = capture_of(safety.checkpoint)
        if held is None:
            failed = safety.checkpoint.capture("filesystem", engine="commit")
            why = failed.error if failed is not None else "it was not committed"
            raise RestoreRefused(
                f"The container as it is now could not be held, so nothing was restored: {why}"
            )
        if has_process:
            await session.durability.secure(safety.checkpoint)
        await session.durability.asked_are_written()
        await session.captures.all_published()
        await session.persistence.written()
        if safety.checkpoint.id in session.persistence.unpublished or session.persistence.problem:
            why = session.persistence.problem or "it is not in the store yet"
            raise RestoreRefused(
                f"The present could not be written, so nothing was restored: {why}"
            )
        note = {
            "target": plan.target.id,
            "safety": safety.checkpoint.id,
            "image": image_of(plan.layer),
            "back": image_of(held),
            "asked": asked.args(),
            "had_process": has_process,
            "how": how,
            "began": began,
            "lost": [
                session.timeline[id].number
                for id in session.frozen
                if id in session.timeline and not session.timeline[id].has_durable_session
            ],
            "kernel_info": session.kernel_info,
            "failed": "",
            "turned": False,
        }
        await self._go(note, request, image_of(plan.layer), image_of(held))

    def _check(self, asked: RestoreRequest, how: Mapping[str, Any] | None) -> None:
        session = self._session
        why = ""
        if how is None:
            why = "This cannot go on in another one: restore first, then ask for the rest."
        elif asked.lease is not None:
            why = "A group cannot wait for that: restore this notebook alone."
        elif asked.compensate:
            why = "Compensations cannot be run on the way: restore without them."
        elif not session.persistence.has_document or session.persistence.directory is None:
            why = "That is for the kernel of a notebook that has a file, whose timeline is stored."
        if why:
            raise RestoreRefused(
                f"The container's own files differ, so another container has to take this one's "
                f"place. {why} Nothing was changed."
            )

    async def _go(
        self, note: dict[str, Any], request: Request | None, image: str, back: str
    ) -> NoReturn:
        """Write the note and end. Raises RestoreRefused; then there is no note."""
        session = self._session
        try:
            self._notes.write(
                {**note, **self._waiting(request)}
            )  # it fails here where there is no room
            await session.layer.replace(image, back)
        except (CommitRefused, StoreError, OSError) as error:
            self._notes.remove()
            raise RestoreRefused(
                f"Another container cannot take this one's place: {error} Nothing was changed."
            ) from error
        try:
            faults.point("container leaves")
            await session.persistence.written()
            await session.history.close()
        except BaseException:
            self._notes.remove()
            with contextlib.suppress(CommitRefused):
                await session.layer.stay()
            raise
        # from here on nothing is waited for: what has come in by now is in the note
        session.router.joiner.flush()
        if session.router.in_flight is not request:
            session.router.answer_in_flight(error=("SessionRestored", "The session was restored."))
        for channel in ("shell", "control"):
            session.channels.read(channel)
        with contextlib.suppress(StoreError, OSError):
            self._notes.write({**note, **self._waiting(request)})
        session.channels.close()
        shutil.rmtree(self._runtime_dir, ignore_errors=True)
        os._exit(0)

    def _waiting(self, request: Request | None) -> dict[str, Any]:
        """Who waits, and for what."""
        session = self._session
        # what an executor sends is handled in the context of whoever brought it up
        asking = session.asking.get() if request is None else None
        control = [one for one in session.control_waiting() if one is not asking]
        return {
            "request": _packed_request(request) if request is not None else None,
            "asking": packed(*asking) if asking is not None else None,
            "queue": [packed(one.identities, one.frames) for one in session.router.waiting()],
            "control": [packed(*one) for one in control],
            "comms": dict(session.router.page_comms),
            "events": session.events.wanted,
            "subscribers": session.channels.subscribers,
        }

    # --- the note --------------------------------------------------------------------------------

    @property
    def _notes(self) -> Notes:
        directory = self._session.persistence.directory
        assert directory is not None
        return Notes(directory, self._session.timeline.id)

    def read(self) -> None:
        """See whether there is one. Never raises: what cannot be read is of no use."""
        session = self._session
        if not session.layer.enabled or session.persistence.directory is None:
            return
        try:
            note = self._notes.read()
            known = note is None or {note["target"], note["safety"]} <= {
                one.id for one in session.timeline
            }
        except (StoreError, ValueError, TypeError, KeyError) as error:
            session.log.error("What a restore had noted cannot be read: %s", error)
            known = False
        if known:
            self._note = note
        else:
            self._notes.remove()

    @property
    def pending(self) -> bool:
        """Whether a restore is to be finished."""
        return self._note is not None

    # --- arriving --------------------------------------------------------------------------------

    async def take_over(self) -> None:
        """The requests that waited wait on; nobody else goes back meanwhile. Before any is read."""
        session, note = self._session, self._note
        if note is None:
            return
        channels = session.channels
        for one in note["queue"]:
            session.router.on_shell(*channels.unpacked(*unpacked(one)))
        for one in note["control"]:
            session.receive_control(*channels.unpacked(*unpacked(one)))
        session.know_kernel(note["kernel_info"])
        session.router.page_comms.update(note["comms"])
        session.events.wanted = note["events"]
        if note["request"] is not None:
            session.router.in_flight = self._request(note["request"])
        channels.be_patient(_CLIENTS_S)
        await session.lock.acquire()

    async def finish(self) -> None:
        """Go on with the restore, and answer. Never raises but where the supervisor is to end."""
        session, note = self._session, self._note
        assert note is not None
        if note["asking"] is not None:
            identities, frames = unpacked(note["asking"])
            session.asking.set((identities, frames))
        answer: Answer
        try:
            if session.layer.replaced:
                await self._clients(note["subscribers"])
            try:
                answer = {"result": await self._finish(note)}
            except Exception as error:  # any: whoever waits is told
                if not isinstance(error, TimeTravelError):
                    session.log.exception("restore")
                answer = {"error": (type(error).__name__, str(error))}
                session.events.publish(
                    "restore_failed",
                    checkpoint=session.timeline[note["target"]],
                    ename=type(error).__name__,
                    evalue=str(error),
                )
            self._note = None
            if session.executor is None and not session.rescue.active:
                await session.launcher.start_or_rescue()
            self._notes.remove()
            with contextlib.suppress(CommitRefused):
                await session.layer.arrived()
        finally:
            session.lock.release()
        self._tell(note, answer)
        session.captures.tidy_commits()

    async def _clients(self, subscribers: int) -> None:
        """Wait until as many listen as before; who answers waits for those that asked."""
        end = time.monotonic() + _CLIENTS_S
        while self._session.channels.subscribers < subscribers and time.monotonic() < end:
            await asyncio.sleep(_LOOK_S)

    async def _finish(self, note: dict[str, Any]) -> dict[str, Any]:
        """The restore result. Raises RestoreFailed; then the session is as it was."""
        session = self._session
        if not note["failed"] and session.layer.image == note["image"]:
            try:
                return await self._forward(note)
            except Exception as error:
                session.log.warning("Restore failed, going back: %s", error)
                note["failed"] = str(error)
                with contextlib.suppress(TimeTravelError, OSError):
                    await session.restores.stop_processes()
        why = note["failed"] or session.layer.why or "the server ended meanwhile."
        await self._back(note, why)
        target, safety = session.timeline[note["target"]], session.timeline[note["safety"]]
        raise RestoreFailed(
            f"The restore of #{target.number} failed: {why} You are back where you were "
            f"(#{safety.number})."
        )

    async def _forward(self, note: Mapping[str, Any]) -> dict[str, Any]:
        session = self._session
        restores = session.restores
        asked = RestoreRequest.read(note["asked"])
        target, safety = session.timeline[note["target"]], session.timeline[note["safety"]]
        plan = await restores.plan(target, asked.only, restores.part_of(asked), asked.partial)
        plan.reseeds = asked.reseed
        plan.is_whole = session.persistence.is_imported and not asked.partial
        present = Plan(safety, None, None)
        if asked.only == "files" and note["had_process"]:
            await restores.plan_memory(present)
        snapshot, _ = await session.files.capture(plan.files.snapshot_id if plan.files else None)
        held = Taken(safety, None, snapshot, None, 0.0)
        faults.point("container replaced")
        done = await restores.restore_files(plan, held)
        try:
            faults.point("files in the next container")
            moved = plan if asked.only != "files" else present
            if moved.brings_process:
                session.take_up(await restores.revive(moved))
            else:
                await session.launcher.start()
        except Exception:
            if done is not None and snapshot is not None:
                back = await session.files.plan(snapshot.id)
                await session.files.restore(back, None)
            raise
        executor = session.executor
        assert executor is not None
        session.reconcile_comms(executor, session.router.in_flight)
        plan.warnings += moved.warnings if moved is present else []
        plan.warnings.append(_cost(plan.target, note["lost"]))
        result = await restores.settle(
            plan,
            asked.only,
            held,
            done,
            session.router.in_flight,
            time.perf_counter() - (time.time() - note["began"]),
            executor=executor,
        )
        session.events.publish("restore_finished", **result)
        session.memory.see_to_it()
        session.durability.after_going_back()
        return result

    async def _back(self, note: dict[str, Any], why: str) -> None:
        """Bring the state before: the container of the safety checkpoint and its process.

        Raises RestoreFailed where that is not all there.
        """
        session = self._session
        safety = session.timeline[note["safety"]]
        if session.layer.image != note["back"] and not note["turned"]:
            with contextlib.suppress(RestoreRefused):
                again = {**note, "failed": why, "turned": True}
                await self._go(again, session.router.in_flight, note["back"], "")
        problem = ""
        if session.layer.image != note["back"]:
            problem = f" The container is not the one before ({session.layer.why or why})."
        if note["had_process"]:
            plan = Plan(safety, None, None)
            try:
                await session.restores.plan_memory(plan)
                session.take_up(await session.restores.revive(plan))
            except (TimeTravelError, OSError) as error:
                problem += f" The process before could not be brought back: {error}"
        if session.executor is None:
            await session.launcher.start_or_rescue()
        if problem:
            raise RestoreFailed(
                f"The restore of #{session.timeline[note['target']].number} failed: {why}{problem} "
                f"All checkpoints are still there; `%restore {safety.number}` tries again."
            )

    def _request(self, known: Mapping[str, Any]) -> Request:
        identities, message, frames = self._session.channels.unpacked(*unpacked(known["raw"]))
        request = Request(identities, message, frames, json.loads(frames[3]), leaving=True)
        request.reply, request.replied = known["reply"], known["replied"]
        request.input_published = known["count"]
        return request

    def _tell(self, note: Mapping[str, Any], answer: Answer) -> None:
        """Answer whoever asked; where the server has ended since, the next cell says it."""
        session, how = self._session, note["how"]
        error, result = answer.get("error"), answer.get("result", {})
        text = result.get("text", "") if error is None else ": ".join(error)
        if not session.layer.replaced:
            session.router.in_flight = None
            session.router.say_next(text)
        elif note["asking"] is not None:
            identities, message, _ = session.channels.unpacked(*unpacked(note["asking"]))
            session.commands.answer_control(identities, message, "restore", result, error)
        elif error is not None:
            session.router.answer_in_flight(error=error)
        elif how["kind"] == "trial":
            told = trial_text(how["what"], result) + "\n"
            session.router.answer_in_flight(text=told, content=how["content"])
        else:
            session.router.answer_in_flight(text=text + "\n")


def _cost(target: Checkpoint, lost: Sequence[int]) -> str:
    """What it has cost that the container was replaced, in words."""
    told = (
        f"the container was replaced by one of the image that #{target.number} names: processes "
        "that were held in memory are gone"
    )
    if lost:
        names = ", ".join(f"#{number}" for number in sorted(lost)[:8])
        more = f" and {len(lost) - 8} more" if len(lost) > 8 else ""
        return f"{told}, and with them the memory of {names}{more}, which was not on the disk"
    return f"{told}; earlier checkpoints come back from the disk"


def _packed_request(request: Request) -> dict[str, Any]:
    return {
        "raw": packed(request.identities, request.frames),
        "reply": request.reply,
        "replied": request.replied,
        "count": request.input_published,
    }
