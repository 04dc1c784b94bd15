"""The commands of docs/protocol.md, whoever sends them: a client on control, or a magic."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kernel_runtime.engines.workspace.errors import WorkspaceError
from kernel_runtime.errors import BadRequest, CheckpointRefused, RestoreRefused, TimeTravelError
from kernel_runtime.supervisor.bringing import bring_files
from kernel_runtime.supervisor.channels import Message
from kernel_runtime.supervisor.checkpoints import Taken
from kernel_runtime.supervisor.command_types import check_types
from kernel_runtime.supervisor.events import VERSION
from kernel_runtime.supervisor.executors import Executor
from kernel_runtime.supervisor.looking_commands import LookingCommands
from kernel_runtime.supervisor.outside import Outside
from kernel_runtime.supervisor.replays import ReplayPlan
from kernel_runtime.supervisor.request import Request
from kernel_runtime.supervisor.restore_request import RestoreRequest
from kernel_runtime.supervisor.timeline_commands import TimelineCommands
from kernel_runtime.timeline.names import Spec
from kernel_runtime.timeline.report import trial_text

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

Answer = dict[str, Any]
"""What ends a cell: arguments of Router.answer_in_flight."""

_HELD = {"process": "memory", "filesystem": "files", "namespace": "variables"}
_TELL_S = 5.0
"""Seconds that whoever reads the result waits for what changed in the environment."""

_GO_BACK = frozenset({"restore", "resume", "bring", "replay", "reset"})
_RIVALS = frozenset({"restore", "resume", "replay"})
_ANSWERED_AT_ONCE = frozenset(
    {"status", "config", "subscribe", "checkpoint", "hold", "release", "tell"}
)


class Commands:
    """Validates and carries out commands on one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._outside = Outside(session)
        self._after_cell: Callable[[Request], Awaitable[Answer]] | None = None
        self._going_back = False
        self._handlers: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
            name[3:]: handler
            for part in (LookingCommands(session), TimelineCommands(session), self)
            for name, handler in inspect.getmembers(part, inspect.ismethod)
            if name.startswith("do_")
        }

    async def on_control(self, identities: list[bytes], message: Message, content: Any) -> None:
        """Answer a ``timetravel_request``."""
        command = content.get("command") if isinstance(content, dict) else None
        result: dict[str, Any] = {}
        error_told: tuple[str, str] | None = None
        try:
            if not isinstance(content, dict) or content.get("version") != VERSION:
                raise BadRequest(
                    f"This kernel speaks version {VERSION} of the time-travel protocol, the "
                    "request does not. Nothing was done; use the same version of "
                    "jupyter_timetravel."
                )
            result = await self.run(command, content.get("args", {}))
        except (TimeTravelError, WorkspaceError) as error:
            error_told = type(error).__name__, str(error)
        except Exception as error:
            self._session.log.exception("timetravel_request %s", command)
            told = f"{type(error).__name__}: {error}. See the server's log."
            error_told = "InternalError", told
        self.answer_control(identities, message, command, result, error_told)

    def answer_control(
        self,
        identities: list[bytes],
        message: Message,
        command: Any,
        result: dict[str, Any],
        error: tuple[str, str] | None,
    ) -> None:
        """Send a ``timetravel_reply``. error: name and text, in place of a result."""
        reply: dict[str, Any] = {"version": VERSION, "command": command}
        if error is None:
            reply.update(result=result, status="ok")
        else:
            name, text = error
            reply.update(status="error", ename=name, evalue=text, traceback=[])
        self._session.channels.send("control", "timetravel_reply", reply, message, identities)

    async def run(self, command: Any, args: Any) -> dict[str, Any]:
        """Carry out one command. Raises TimeTravelError."""
        handler = self._handlers.get(command) if isinstance(command, str) else None
        if handler is None:
            raise BadRequest(
                f"There is no command {command!r}. There are: {', '.join(sorted(self._handlers))}."
            )
        if not isinstance(args, dict):
            raise BadRequest(f"The arguments of {command} must be an object. Nothing was done.")
        check_types(args)
        try:
            inspect.signature(handler).bind(**args)
        except TypeError as error:
            raise BadRequest(f"{command}: {error}. Nothing was done.") from None
        if command in _ANSWERED_AT_ONCE:
            return await handler(**args)
        # cells that come after a restore wait for it, also while it waits itself
        changes = command in _GO_BACK and not args.get("dry_run")
        # a group's coordinator holds the session: it is before all who wait for that hold's end
        rival = changes and command in _RIVALS and args.get("lease") is None
        if changes:
            self._session.replays.refuse_while_running(command)
        if rival:
            self._refuse_beside_another(command)
            self._going_back = True
        reason = f"waiting {command}" if changes and command != "reset" else ""
        if reason:
            self._session.router.hold(reason)
        try:
            # the checkpoint of a cell whose reply is out may still be in the making: -1 is that one
            async with self._session.lock:
                pass
            if changes:
                await self._session.holding.not_by_another(args.get("lease"))
            return await handler(**args)
        finally:
            if rival:
                self._going_back = False
            if reason:
                self._session.router.release(reason)

    def _refuse_beside_another(self, command: str) -> None:
        """Of two who ask at the same moment the first wins; the other has seen another present."""
        if self._going_back:
            raise RestoreRefused(
                f"The session is going back already, as somebody else has asked, so {command} was "
                "not begun. Nothing was changed by it; look where the session is then, and ask "
                "again."
            )

    # Magics

    async def from_magic(self, executor: Executor, report: dict[str, Any]) -> None:
        """Answer a magic. A restore is only checked here: it is done when its cell has ended."""
        answer: dict[str, Any] = {"id": report["id"]}
        command, args = report["command"], report["args"]
        request = self._session.router.in_flight
        executor.magics += 1
        try:
            check_types(args)
            if command == "restore" and not args.get("dry_run"):
                asked = RestoreRequest.read(args)
                self._check_restore(asked)
                answer["leave"] = self._leave(request, partial(self._restore_of_cell, asked))
            elif command == "resume":
                self._session.portable.resume_target()
                answer["leave"] = self._leave(request, partial(self._resume, **args))
            elif command == "bring":
                answer["result"] = await self._bring(request, **args)
            elif command == "replay" and not args.get("dry_run"):
                plan = self._session.replays.plan(**_without_dry_run(args), asker=request)
                answer["leave"] = self._leave(request, partial(self._replay, plan=plan))
            elif command == "trial":
                answer["result"] = await self._trial(request, **args)
            elif command == "roll_back":
                answer["leave"] = self._leave(request, partial(self._roll_back, **args))
            elif command == "reset" and args.get("process"):
                answer["leave"] = self._leave(request, partial(self._reset, **args))
            elif command == "reset":
                answer["result"] = await self._outside.reset(request, **args)
            elif command == "checkpoint":
                answer["result"] = await self._checkpoint(request, **args)
            else:
                answer["result"] = await self.run(command, args)
        except (TimeTravelError, WorkspaceError) as error:
            answer.update(error=type(error).__name__, text=str(error))
        except TypeError as error:
            answer.update(error="BadRequest", text=f"{command}: {error}. Nothing was done.")
        except Exception as error:
            self._session.log.exception("magic %s", command)
            answer.update(error="TimeTravelError", text=f"{type(error).__name__}: {error}")
        finally:
            executor.magics -= 1
        if executor.alive:
            executor.link.command("answer", **answer)

    def _check_restore(self, asked: RestoreRequest) -> None:
        # the rest is checked when the cell has ended: it may still change what is to be checked
        restores = self._session.restores
        target = restores.target(asked.checkpoint, asked.undo)
        if asked.only != "files":
            restores.check_memory(target)

    def _leave(self, request: Request | None, work: Callable[[Request], Awaitable[Answer]]) -> bool:
        """Note what is to be done when the cell that asks has ended. Raises RestoreRefused."""
        if request is None or request.type != "execute_request":
            raise RestoreRefused(
                "The session can go back in a cell only, not in what runs between cells, such as a "
                "widget's callback. Nothing was changed. Run a cell, or use the sidebar."
            )
        if request.inner is not None:
            raise RestoreRefused(
                "A cell that is being replayed cannot go back in time itself, nor can a "
                "compensation. Nothing was changed."
            )
        request.leaving = True
        self._after_cell = work
        return True

    async def restore_after_cell(self, request: Request) -> None:
        """The cell that called %restore has ended: restore, then give its output and reply."""
        session = self._session
        work, self._after_cell = self._after_cell, None
        try:
            if work is None:
                return  # a woken process has ended the same cell once more
            try:
                session.router.answer_in_flight(**await work(request))
            except (TimeTravelError, WorkspaceError) as error:
                session.router.answer_in_flight(error=(type(error).__name__, str(error)))
            except Exception as error:
                session.log.exception("restore")
                session.router.answer_in_flight(error=(type(error).__name__, str(error)))
        finally:
            session.router.release("restore")

    async def _restore(self, asked: RestoreRequest, request: Request | None) -> dict[str, Any]:
        """request: the cell that asks, if one does; it has ended."""
        session = self._session
        target = session.restores.target(asked.checkpoint, asked.undo)
        part = session.restores.part_of(asked)
        if asked.dry_run:
            return await session.restores.dry_run(target, asked, part)
        if asked.compensate:
            session.restores.check_memory(target)
            await session.restores.make_idle(asked.force, request)
            await session.compensations.run(target, request)
        return await session.restores.restore(
            target, asked, request=request, part=part, how={"kind": "restore"}
        )

    async def _restore_of_cell(self, asked: RestoreRequest, request: Request) -> Answer:
        return {"text": (await self._restore(replace(asked, force=True), request))["text"] + "\n"}

    async def _resume(self, request: Request, force: bool = True, reseed: bool = False) -> Answer:
        result = await self._session.portable.resume(request, force=True, reseed=reseed)
        return {"text": result["text"] + "\n"}

    async def _trial(self, request: Request | None, comment: str) -> dict[str, Any]:
        """The checkpoint before a cell that may be taken back. Raises CheckpointRefused."""
        session = self._session
        record = (await self._checkpoint(request, comment))["checkpoint"]
        for capture in record["captures"]:
            if capture["state"] != "ready":
                raise CheckpointRefused(
                    f"The {_HELD[capture['kind']]} before the cell could not be held, so the cell "
                    f"was not run: {capture['error'] or capture['state']}"
                )
        environment = session.environment.enabled or session.layer.enabled
        warnings = []
        if not session.files.enabled and not (session.config.is_isolated and environment):
            warnings.append(
                "files of the workspace stay as the cell leaves them. "
                f"{session.files.problem or 'They are not captured.'}"
            )
        if not environment:
            warnings.append(
                "files outside of the workspace stay as the cell leaves them: they are not covered."
            )
        return {"checkpoint": record["id"], "warnings": warnings}

    async def _roll_back(self, request: Request, checkpoint: Spec, what: str) -> Answer:
        """Take back what a cell has done; its reply is the executor's own. what: said first."""
        own = request.reply
        restores = self._session.restores
        result = await restores.restore(
            restores.target(checkpoint, False),
            RestoreRequest(force=True),
            request=request,
            tell_s=_TELL_S,
            how={"kind": "trial", "what": what, "content": own},
        )
        return {"text": trial_text(what, result) + "\n", "content": own}

    async def _replay(self, request: Request, plan: ReplayPlan) -> Answer:
        return {"text": (await self._session.replays.run(plan, request))["text"] + "\n"}

    async def _reset(self, request: Request, process: bool) -> Answer:
        return {"text": (await self._outside.reset(request, process))["text"] + "\n"}

    # Commands: one coroutine each, its parameters are the command's arguments

    async def do_checkpoint(
        self, comment: str = "", label: str | None = None, pin: bool = False
    ) -> dict[str, Any]:
        session = self._session
        router = session.router
        router.hold("manual")
        try:
            await self._wait_idle()
            taken = await self._take(None, comment, label, pin)
        finally:
            router.release("manual")
        return await self._told(taken)  # cells go on meanwhile

    async def _checkpoint(
        self,
        request: Request | None,
        comment: str = "",
        label: str | None = None,
        pin: bool = False,
    ) -> dict[str, Any]:
        return await self._told(await self._take(request, comment, label, pin))

    async def _take(
        self, request: Request | None, comment: str, label: str | None, pin: bool
    ) -> Taken:
        session = self._session
        comment = comment if comment.strip() else ""
        async with session.lock:
            return await session.checkpoints.take(
                "manual", request=request, comment=comment, label=label, pinned=pin
            )

    async def _told(self, taken: Taken) -> dict[str, Any]:
        session = self._session
        record = session.timeline.record(taken.checkpoint)
        # who is told its number may rely on it, whatever happens to the machine then
        await session.captures.published(taken.checkpoint.id)
        return {
            "checkpoint": record,
            "pause_ms": taken.pause_ms,
            "problem": session.persistence.problem,
        }

    async def _wait_idle(self) -> None:
        """A cell that runs is finished first; the queue is held by the caller."""
        while self._session.router.in_flight is not None:
            await asyncio.sleep(0.005)

    async def do_restore(self, **args: Any) -> dict[str, Any]:
        asked = RestoreRequest.read(args)
        if asked.dry_run:
            return await self._restore(asked, None)
        self._session.router.hold("restore")
        try:
            return await self._restore(asked, None)
        finally:
            self._session.router.release("restore")

    async def do_resume(self, force: bool = False, reseed: bool = False) -> dict[str, Any]:
        router = self._session.router
        router.hold("restore")
        try:
            return await self._session.portable.resume(None, force=force, reseed=reseed)
        finally:
            router.release("restore")

    async def do_bring(
        self,
        checkpoint: Spec,
        names: list[str] | None = None,
        paths: list[str] | None = None,
    ) -> dict[str, Any]:
        router = self._session.router
        router.hold("bring")
        try:
            await self._wait_idle()
            return await self._bring(None, checkpoint, names, paths)
        finally:
            router.release("bring")

    async def _bring(
        self,
        request: Request | None,
        checkpoint: Spec,
        names: list[str] | None = None,
        paths: list[str] | None = None,
    ) -> dict[str, Any]:
        if not all(isinstance(name, str) for name in [*(names or ()), *(paths or ())]):
            raise BadRequest("names and paths must be lists of texts. Nothing was changed.")
        if names is not None and paths is not None:
            raise BadRequest("Bring names or paths, not both at once. Nothing was changed.")
        target = self._session.timeline.resolve(checkpoint)
        if names is None:
            return await bring_files(self._session, target, list(paths or ()), request)
        return await self._session.portable.bring(target, list(dict.fromkeys(names)), request)

    async def do_replay(
        self,
        checkpoint: Spec,
        skip: list[Spec] | None = None,
        until: Spec | None = None,
        stop_on_difference: bool = False,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        session = self._session
        which = (checkpoint, skip or (), until, stop_on_difference)
        if dry_run:
            return session.replays.dry_run(session.replays.plan(*which))
        session.router.hold("restore")
        try:
            await self._wait_idle()
            return await session.replays.run(session.replays.plan(*which), None)
        finally:
            session.router.release("restore")

    async def do_reset(self, process: bool = False) -> dict[str, Any]:
        router = self._session.router
        router.hold("reset")
        try:
            await self._wait_idle()
            # where there is no process that could live on, restores know what to do instead
            rescue: Any = getattr(self._session.restores, "reset", None)
            if rescue is not None:
                result: dict[str, Any] = await rescue(None)
                return result
            return await self._outside.reset(None, process)
        finally:
            router.release("reset")

    async def do_outside(self, each: bool = False) -> dict[str, Any]:
        return await self._outside.listing(each)

    async def do_apply(
        self, paths: list[str] | None = None, dry_run: bool = False, force: bool = False
    ) -> dict[str, Any]:
        if not all(isinstance(path, str) for path in paths or ()):
            raise BadRequest("paths must be a list of texts. Nothing was copied.")
        return await self._outside.apply(paths or [], dry_run, force)


def _without_dry_run(args: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in args.items() if name != "dry_run"}
