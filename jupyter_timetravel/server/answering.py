"""What all handlers share: who may ask, how a body is read, how an error is told, how progress is.

Nothing of a session is looked at before the user is known and allowed: an id that exists and one
that does not are refused alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, TypeVar

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web
from tornado.iostream import StreamClosedError

from jupyter_timetravel.access.errors import NoSuchKernel
from jupyter_timetravel.groups.errors import GroupFailed
from jupyter_timetravel.offline.stored import NoSuchSession, NotRunning, SessionInUse
from jupyter_timetravel.server import schemas
from jupyter_timetravel.server.errors import (
    BehindGateway,
    NotAllowed,
)
from jupyter_timetravel.server.live import Tell
from jupyter_timetravel.server.routes import EVENT_STREAM, spec_of
from jupyter_timetravel.wire import KernelGone, NoTimeTravel, RequestTimeout
from kernel_runtime.errors import (
    BadRequest,
    CheckpointRefused,
    EnvironmentRefused,
    RestoreRefused,
    TimeTravelError,
    UnknownCheckpoint,
)
from kernel_runtime.store.encryption import EncryptionLocked
from kernel_runtime.store.errors import TimelineInUse
from kernel_runtime.store.keys import NotAuthentic, NotTrusted
from kernel_runtime.timeline.groups import GroupRefused, UnknownGroup

F = TypeVar("F", bound=Callable[..., Any])

LARGEST_BODY: Final = 1 << 20
"""Bytes."""
SIGN_OF_LIFE_S: Final = 15.0
"""Seconds after which a stream that has nothing to tell says that it is alive."""

_STATUS: Final[Mapping[str, int]] = {
    BadRequest.__name__: 400,
    NotAllowed.__name__: 403,
    NotTrusted.__name__: 403,
    NotAuthentic.__name__: 403,
    UnknownCheckpoint.__name__: 404,
    NoSuchSession.__name__: 404,
    NotRunning.__name__: 409,
    SessionInUse.__name__: 409,
    TimelineInUse.__name__: 409,
    EncryptionLocked.__name__: 409,
    CheckpointRefused.__name__: 409,
    RestoreRefused.__name__: 409,
    UnknownGroup.__name__: 404,
    GroupRefused.__name__: 409,
    GroupFailed.__name__: 409,
    NoSuchKernel.__name__: 409,
    EnvironmentRefused.__name__: 409,
    "WorkspaceRestoreRefused": 409,
    "WorkspaceCaptureFailed": 409,
    "DeleteRefused": 409,
    "ApplyRefused": 409,
    "ExportRefused": 409,
    "CleanExportRefused": 409,
    NoTimeTravel.__name__: 501,
    BehindGateway.__name__: 502,
    KernelGone.__name__: 502,
    RequestTimeout.__name__: 504,
}
"""By the name of the error; whatever else fails is a 500."""

_HINT: Final[Mapping[str, str]] = {
    UnknownCheckpoint.__name__: "GET …/checkpoints lists those that exist.",
    NoSuchSession.__name__: "GET /api/timetravel/sessions lists what there is.",
    UnknownGroup.__name__: "GET /api/timetravel/groups lists what there is.",
    BadRequest.__name__: "GET /api/timetravel/openapi.json says what a request may hold.",
    NotAllowed.__name__: "Ask with a token or user that may do it.",
    NotTrusted.__name__: "`jupyter timetravel trust ID` in a terminal, if you trust its maker.",
    NotRunning.__name__: "Start a kernel for the notebook: POST /api/sessions.",
    SessionInUse.__name__: "Shut its kernel down, or ask for the kernel's session.",
    NoTimeTravel.__name__: "Use the kernel Python 3 (time travel).",
    BehindGateway.__name__: "See that the gateway runs, or ask the server that runs the kernel.",
    KernelGone.__name__: "GET …/checkpoints, and ask again.",
    RequestTimeout.__name__: "GET …/status, and ask again.",
    "DeleteRefused": "PATCH it with pinned false, or restore another one first.",
}


def error_name(error: TimeTravelError) -> tuple[str, str]:
    """Class and message; of a class that this side does not know, as the kernel told them."""
    name, message = type(error).__name__, str(error)
    if type(error) is TimeTravelError:
        told, colon, rest = message.partition(": ")
        if colon and told.isidentifier():
            return told, rest
    return name, message


def error_body(error: TimeTravelError) -> tuple[int, dict[str, Any]]:
    """The status and the JSON that an error is told by."""
    name, message = error_name(error)
    hint = _HINT.get(name, "The message says what holds, and what to do.")
    return _STATUS.get(name, 500), {
        "error": name,
        "message": message,
        "hint": hint,
        "reason": None,
    }


def may_execute(method: F) -> F:
    """``authorized`` for a verb that needs more than its name says: the permission to execute."""
    decorate: Any = authorized("execute")
    decorated: F = decorate(method)
    return decorated


class TimeTravelHandler(APIHandler):
    """Base of all handlers below ``/api/timetravel``."""

    auth_resource = "timetravel"

    @property
    def extension(self) -> Any:
        """The ``TimeTravelServer``."""
        return self.settings["timetravel"]

    async def prepare(self) -> None:  # type: ignore[override]
        """Refuse who is not known, and what is too large, before anything is looked at."""
        await super().prepare()
        if self.current_user is None and self.request.method != "OPTIONS":
            raise web.HTTPError(403)
        if len(self.request.body or b"") > LARGEST_BODY:
            raise web.HTTPError(413, f"A request has {LARGEST_BODY} bytes at most.")

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Every error is JSON of one form."""
        error = (kwargs.get("exc_info") or (None, None, None))[1]
        if isinstance(error, TimeTravelError):
            status_code, body = error_body(error)
            self.set_status(status_code)
        else:
            body = self._http_error(status_code, error)
        if status_code == 405:
            verbs = ("get", "post", "patch", "delete")
            have = [
                v.upper() for v in verbs if getattr(type(self), v) is not getattr(APIHandler, v)
            ]
            self.set_header("Allow", ", ".join([*have, "OPTIONS"]))
        if status_code >= 500:
            self.log.error("time travel: %s %s", self.request.uri, body["message"])
        self.finish(json.dumps(body))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """An error that is meant for the user is no accident of the server's."""
        if not isinstance(value, TimeTravelError):
            super().log_exception(typ, value, tb)

    def _http_error(self, status: int, error: BaseException | None) -> dict[str, Any]:
        phrase = HTTPStatus(status).phrase
        if status == 403:
            _, body = error_body(
                NotAllowed(
                    "You are not allowed to do that here, or not known: nothing was done. Give a "
                    "token in the header Authorization, and with a cookie the XSRF token too."
                )
            )
            return body
        message = phrase
        if isinstance(error, web.HTTPError):
            message = str(error.log_message or phrase)
        hint = (
            "See the server's log."
            if status >= 500
            else "GET /api/timetravel/openapi.json says what there is."
        )
        name = f"Http{phrase.title().replace(' ', '')}"
        return {
            "error": name,
            "message": message if status >= 500 else f"{message}. Nothing was done.",
            "hint": hint,
            "reason": phrase,
        }

    # What is asked

    def body(self, command: str) -> dict[str, Any]:
        """The body of a request; none is an empty object. Raises BadRequest."""
        raw = self.request.body or b"{}"
        try:
            body = json.loads(raw.decode("utf-8"), parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"The body is not JSON: {error}. Nothing was done.") from error
        return schemas.check_body(command, body)

    def query(self, command: str) -> dict[str, Any]:
        """The query parameters of a request, read as their schemas say. Raises BadRequest."""
        known = schemas.QUERIES.get(command, {})
        found: dict[str, Any] = {}
        for name in self.request.query_arguments:
            if name in ("token", "_xsrf", "no_track_activity"):
                continue
            values = self.get_query_arguments(name, strip=False)
            if name not in known or len(values) != 1:
                raise BadRequest(
                    f"There is no query parameter {name[:100]!r} here, or it is given twice. "
                    f"There are: {', '.join(known) or 'none'}. Nothing was done."
                )
            found[name] = _value(name, values[0], known[name])
        for required in (name for of, name in schemas.REQUIRED if of == command):
            if required not in found:
                raise BadRequest(f"The query parameter {required} is missing. Nothing was done.")
        return found

    # What is answered

    def answer(self, result: Mapping[str, Any], status: int = 200) -> None:
        """Send a result."""
        self.set_status(status)
        self.finish(json.dumps(result))

    @property
    def wants_progress(self) -> bool:
        """Whether the client has asked for a stream of events."""
        accepted = self.request.headers.get("Accept", "")
        return any(part.split(";")[0].strip() == EVENT_STREAM for part in accepted.split(","))

    async def operate(
        self, work: Callable[[Tell | None], Awaitable[Mapping[str, Any]]], status: int = 200
    ) -> None:
        """Carry out a long operation to its end, whether the client stays or not.

        status: of an answer that is no stream. With progress if that was asked for: messages of
        type info, stdout, stderr; last result or error.
        """
        if not self.wants_progress:
            self.answer(await self.extension.to_the_end(work(None)), status)
            return
        messages: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()

        async def told() -> None:
            try:
                result = await work(messages.put_nowait)
                messages.put_nowait({"type": "result", "result": result})
            except TimeTravelError as error:
                status, body = error_body(error)
                messages.put_nowait({"type": "error", "status": status, **body})
            except Exception as error:
                self.log.exception("time travel: %s", self.request.uri)
                _, body = error_body(TimeTravelError(f"{type(error).__name__}: {error}"))
                messages.put_nowait({"type": "error", "status": 500, **body})

        task = self.extension.to_the_end(told())
        try:
            await self.stream(_until_done(messages))
            await task
        finally:
            if not task.done():
                self.log.info("time travel: %s goes on without its client", self.request.uri)

    async def stream(self, messages: AsyncGenerator[Mapping[str, Any] | None, None]) -> None:
        """Send server-sent events; None is a sign of life. Ends when the client goes away."""
        self.set_header("Content-Type", EVENT_STREAM)
        self.set_header("Cache-Control", "no-cache")
        self.set_header("X-Accel-Buffering", "no")  # proxies hold answers back otherwise
        try:
            async with contextlib.aclosing(messages):
                async for message in messages:
                    if message is None:
                        self.write(": alive\n\n")
                    else:
                        self.write(f"event: {message['type']}\ndata: {json.dumps(message)}\n\n")
                    await self.flush()
        except StreamClosedError:
            return
        with contextlib.suppress(StreamClosedError):
            await self.finish(set_content_type=EVENT_STREAM)


async def _until_done(
    messages: asyncio.Queue[Mapping[str, Any]],
) -> AsyncGenerator[Mapping[str, Any] | None, None]:
    while True:
        try:
            message = await asyncio.wait_for(messages.get(), SIGN_OF_LIFE_S)
        except asyncio.TimeoutError:
            yield None
            continue
        yield message
        if message["type"] in ("result", "error"):
            return


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _value(name: str, text: str, schema: schemas.Schema) -> Any:
    if schema["type"] == "boolean":
        if text not in ("true", "false"):
            raise BadRequest(f"{name} must be true or false. Nothing was done.")
        return text == "true"
    if len(text) > schema["maxLength"]:
        raise BadRequest(f"{name} is too long. Nothing was done.")
    return spec_of(text) if "integer" in schema["type"] else text
