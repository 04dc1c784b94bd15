"""One class for each path, one method for each verb. They parse, ask, and write the answer.

Reading needs the permission ``read``, changing what is noted of a checkpoint or making one
``write``; whatever runs code, ends processes, replaces files or hands out their content
``execute``: who may restore may do all that a cell may.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from jupyter_server.auth.decorator import authorized
from jupyter_server.utils import url_path_join
from tornado import web
from tornado.iostream import StreamClosedError

from jupyter_timetravel.commands import VERSION
from jupyter_timetravel.offline.stored import NoSuchSession
from jupyter_timetravel.server import exports, group_handlers
from jupyter_timetravel.server import store as stores
from jupyter_timetravel.server.answering import (
    SIGN_OF_LIFE_S,
    TimeTravelHandler,
    error_body,
    may_execute,
)
from jupyter_timetravel.server.live import LiveSession, Tell
from jupyter_timetravel.server.openapi import document
from jupyter_timetravel.server.past import PastSession
from jupyter_timetravel.server.routes import EVENT_STREAM, PREFIX, spec_of
from kernel_runtime.errors import BadRequest, TimeTravelError
from kernel_runtime.timeline.model import check_text
from kernel_runtime.timeline.names import check_label

_PIECE: Final = 1 << 20


class AboutHandler(TimeTravelHandler):
    """What answers here."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Versions: a front end compares them with its own."""
        self.query("about")
        about = {"version": version("jupyter_timetravel"), "protocol_version": VERSION}
        self.answer({**about, "events": self.extension.events})


class DocumentHandler(TimeTravelHandler):
    """The OpenAPI document."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """As the server is reached: with its base URL."""
        self.query("document")
        self.answer(document(url_path_join(self.base_url, PREFIX)))


class SessionsHandler(TimeTravelHandler):
    """All sessions."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Those of running kernels, then those that are stored."""
        rows = await self.extension.sessions.listing(**self.query("sessions"))
        self.answer({"sessions": rows})


class SessionHandler(TimeTravelHandler):
    """One session."""

    @web.authenticated
    @authorized
    async def get(self, session: str) -> None:
        """What is known of it without its checkpoints."""
        self.query("session")
        self.answer(await self.extension.sessions.describe(session))


class OfSession(TimeTravelHandler):
    """Base of what is below one session."""

    async def run(self, session: str, command: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """The result of a command, which goes on if the client goes away."""

        async def work() -> Mapping[str, Any]:
            found = await self.extension.sessions.find(session)
            result: Mapping[str, Any] = await found.run(command, args)
            return result

        result: Mapping[str, Any] = await self.extension.to_the_end(work())
        return result

    async def read(self, session: str, command: str, **args: Any) -> None:
        """Answer a reading command, whose arguments are in the query."""
        self.answer(await self.run(session, command, {**self.query(command), **args}))

    async def act(self, session: str, command: str, args: Mapping[str, Any]) -> None:
        """Answer an operation, with progress if that was asked for."""

        async def work(tell: Tell | None) -> Mapping[str, Any]:
            found = await self.extension.sessions.find(session)
            result: Mapping[str, Any] = await found.run(command, args, tell)
            return result

        await self.operate(work)


class StatusHandler(OfSession):
    """Where a session stands."""

    @web.authenticated
    @authorized
    async def get(self, session: str) -> None:
        """Head, configuration, memory, engines, limits."""
        await self.read(session, "status")


class CheckpointsHandler(OfSession):
    """The checkpoints of a session."""

    @web.authenticated
    @authorized
    async def get(self, session: str) -> None:
        """Oldest first."""
        await self.read(session, "list")

    @web.authenticated
    @authorized
    async def post(self, session: str) -> None:
        """Make one; while a cell runs, after it."""
        self.query("checkpoint")
        self.answer(await self.run(session, "checkpoint", self.body("checkpoint")), 201)


class CheckpointHandler(OfSession):
    """One checkpoint."""

    @web.authenticated
    @authorized
    async def get(self, session: str, checkpoint: str) -> None:
        """With its variables, and the cells that ran since its parent."""
        await self.read(session, "get", checkpoint=spec_of(checkpoint))

    @web.authenticated
    @authorized
    async def patch(self, session: str, checkpoint: str) -> None:
        """Change its label, its comment, whether it is pinned: all of these, or none."""
        self.query("patch")
        changes = self.body("patch")
        if changes.get("label") is not None:
            check_label(changes["label"])
        if "comment" in changes:
            check_text(changes["comment"], "comment")

        async def work() -> Mapping[str, Any]:
            found = await self.extension.sessions.find(session)
            # by its id from here on: another label may be what it was named by
            named = await found.run("get", {"checkpoint": spec_of(checkpoint)})
            id, result = named["checkpoint"]["id"], named
            for name, command in (("comment", "comment"), ("pinned", "pin"), ("label", "label")):
                if name in changes:
                    result = await found.run(command, {"checkpoint": id, name: changes[name]})
            return {"checkpoint": result["checkpoint"]}

        self.answer(await self.extension.to_the_end(work()))

    @web.authenticated
    @authorized
    async def delete(self, session: str, checkpoint: str) -> None:
        """Its children then hang on its parent."""
        await self.read(session, "delete", checkpoint=spec_of(checkpoint))


class CellsHandler(OfSession):
    """The cells that ran."""

    @web.authenticated
    @authorized
    async def get(self, session: str) -> None:
        """Those that led from one checkpoint to another."""
        await self.read(session, "cells")


class DiffHandler(OfSession):
    """Differences."""

    @web.authenticated
    @authorized
    async def get(self, session: str) -> None:
        """What happened from a to b."""
        await self.read(session, "diff")


class OutsideHandler(OfSession):
    """Files outside of the workspace."""

    @web.authenticated
    @authorized
    async def get(self, session: str) -> None:
        """What was written there and the machine does not have."""
        await self.read(session, "outside")


class ConfigHandler(OfSession):
    """Options of a running kernel."""

    @web.authenticated
    @authorized
    async def get(self, session: str) -> None:
        """All of them."""
        await self.read(session, "config")

    @web.authenticated
    @may_execute
    async def patch(self, session: str) -> None:
        """Change some."""
        self.query("config")
        self.answer(await self.run(session, "config", {"set": self.body("config")}))


class RestoreHandler(OfSession):
    """Going back."""

    @web.authenticated
    @may_execute
    async def post(self, session: str) -> None:
        """All of it, files or memory only, or single variables or files."""
        self.query("restore")
        args = self.body("restore")
        which = next((name for name in ("vars", "paths") if name in args), None)
        if which is None:
            await self.act(session, "restore", args)
            return
        others = [name for name in args if name not in (which, "checkpoint") and args[name]]
        if others:
            raise BadRequest(f"{which} goes with a checkpoint alone, not with {others[0]}.")
        chosen = {"names" if which == "vars" else "paths": args[which]}
        await self.act(session, "bring", {"checkpoint": args.get("checkpoint", -1), **chosen})


class OperationHandler(OfSession):
    """An operation whose body is its arguments."""

    def initialize(self, command: str) -> None:
        """command: of docs/protocol.md."""
        self._command = command

    @web.authenticated
    @may_execute
    async def post(self, session: str) -> None:
        """Carry it out."""
        self.query(self._command)
        args = self.body(self._command)
        if self._command == "verify" and args.get("checkpoint") is None:
            args.pop("checkpoint", None)
        await self.act(session, self._command, args)


class ExportHandler(OfSession):
    """A timeline, or the cells that lead to a checkpoint, as one file."""

    @web.authenticated
    @may_execute
    async def post(self, session: str) -> None:
        """Write it below the server's directory, or send it."""
        self.query("export")
        args = self.body("export")
        format = args.get("format", "timeline")
        path = args.get("path")
        what: dict[str, Any] = {
            name: args[name] for name in ("format", "checkpoint", "environment") if name in args
        }
        if path is None:
            if self.wants_progress:
                raise BadRequest("Progress is told of an export with a path. Nothing was written.")
            await self._send(session, format, what)
            return
        manager = self.contents_manager
        hidden = bool(getattr(manager, "allow_hidden", False))
        target = exports.target_below(
            self.extension.root, path, format, hidden=hidden, force=bool(args.get("force"))
        )

        async def work(tell: Tell | None) -> Mapping[str, Any]:
            if tell is not None:
                tell({"type": "info", "text": f"writing {path}"})
            written = await self._write(session, target, what)
            return {**written, "path": path.strip("/")}

        await self.operate(work)

    async def _write(
        self, session: str, target: Path, what: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        found = await self.extension.sessions.find(session)
        id = found.id
        if isinstance(found, LiveSession):
            id = (await found.run("status", {}))["timeline"]
            made = (await found.run("list", {}))["checkpoints"]
            await stores.in_thread(exports.wait_for, id, [one["id"] for one in made])
        return await stores.in_thread(exports.write, id, target, **what)

    async def _send(self, session: str, format: str, what: Mapping[str, Any]) -> None:
        with exports.temporary(format) as target:
            await self._write(session, target, what)
            kind = "application/json" if format == "notebook" else "application/zstd"
            self.set_header("Content-Length", str(target.stat().st_size))
            self.set_header("Content-Disposition", f'attachment; filename="{target.name}"')
            self.set_header("Content-Type", kind)
            try:
                with open(target, "rb") as file:
                    while piece := await stores.in_thread(file.read, _PIECE):
                        self.write(piece)
                        await self.flush()
                await self.finish(set_content_type=kind)
            except StreamClosedError:
                return


class EventsHandler(OfSession):
    """What happens to a running session."""

    @web.authenticated
    @authorized
    async def get(self, session: str) -> None:
        """Server-sent events, for as long as the client listens."""
        self.query("events")
        if not self.wants_progress:
            raise BadRequest(f"Events are sent as a stream: Accept: {EVENT_STREAM}.")
        found = await self.extension.sessions.find(session)
        if isinstance(found, PastSession):
            await found.run("events", {})  # says that this needs a kernel
        await self.stream(_with_signs_of_life(found.events()))


async def _with_signs_of_life(
    events: AsyncGenerator[Mapping[str, Any], None],
) -> AsyncGenerator[Mapping[str, Any] | None, None]:
    task: asyncio.Task[Any] | None = None
    try:
        while True:
            task = task or asyncio.ensure_future(anext(events))
            if not (await asyncio.wait([task], timeout=SIGN_OF_LIFE_S))[0]:
                yield None
                continue
            try:
                content = task.result()
            except StopAsyncIteration:
                return
            except TimeTravelError as error:
                status, body = error_body(error)
                yield {"type": "error", "status": status, **body}
                return
            finally:
                task = None
            if content:
                yield {"type": "event", "content": content}
            else:
                yield {"type": "listening"}
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await events.aclose()


class NothingHandler(TimeTravelHandler):
    """Every other path."""

    @web.authenticated
    @authorized
    async def get(self, path: str) -> None:
        """Nothing is there."""
        raise NoSuchSession(f"There is nothing at {PREFIX}/{path[:200]}. Nothing was done.")

    post = put = patch = delete = head = get


_SESSION = r"/sessions/(?P<session>[^/]+)"
_OPERATIONS = ("resume", "replay", "verify", "reset", "apply")

HANDLERS: Final[list[tuple[Any, ...]]] = [
    ("/?", AboutHandler),
    ("/openapi.json", DocumentHandler),
    ("/sessions", SessionsHandler),
    (_SESSION, SessionHandler),
    (f"{_SESSION}/status", StatusHandler),
    (f"{_SESSION}/checkpoints", CheckpointsHandler),
    (rf"{_SESSION}/checkpoints/(?P<checkpoint>[^/]+)", CheckpointHandler),
    (f"{_SESSION}/cells", CellsHandler),
    (f"{_SESSION}/diff", DiffHandler),
    (f"{_SESSION}/outside", OutsideHandler),
    (f"{_SESSION}/config", ConfigHandler),
    (f"{_SESSION}/restore", RestoreHandler),
    *((f"{_SESSION}/{name}", OperationHandler, {"command": name}) for name in _OPERATIONS),
    (f"{_SESSION}/export", ExportHandler),
    (f"{_SESSION}/events", EventsHandler),
    *group_handlers.HANDLERS,
    (r"/(?P<path>.*)", NothingHandler),
]
"""Paths below ``PREFIX``, as tornado matches them."""


def at(base_url: str) -> list[tuple[Any, ...]]:
    """The handlers for a server's application."""
    found = []
    for path, *rest in HANDLERS:
        # not url_path_join: it would take the backslashes and the empty path for its own
        found.append((f"{base_url.rstrip('/')}{PREFIX}{path}", *rest))
    return found
