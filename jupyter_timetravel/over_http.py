"""Carries commands to a session through a Jupyter server's REST interface (docs/server.md)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote

from jupyter_timetravel.commands import Command, error_of
from jupyter_timetravel.groups import errors as _group_errors  # noqa: F401  (known by name)
from jupyter_timetravel.offline.stored import NoSuchSession
from jupyter_timetravel.records import Result
from jupyter_timetravel.server.errors import NotAllowed, ServerUnreachable
from jupyter_timetravel.server.routes import EVENT_STREAM, PREFIX, HttpRequest, request_of
from jupyter_timetravel.wire import RequestTimeout
from kernel_runtime.errors import BadRequest, TimeTravelError

try:
    import httpx
    from anyio.from_thread import start_blocking_portal  # httpx needs anyio
except ImportError as error:
    raise ImportError(
        "A client of a server needs httpx: pip install 'jupyter_timetravel[http]'. A client of a "
        "kernel on this machine needs nothing more: Client.from_connection_file."
    ) from error

T = TypeVar("T")

TOKEN_VARIABLE: Final = "JUPYTER_TOKEN"
_SILENCE_S: Final = 60.0
"""A stream of events on which not even a sign of life came for so long has ended: the server sends
one every 15 seconds."""


class _Address:
    """A session at a server."""

    def __init__(self, url: str, token: str | None) -> None:
        base, _, query = url.partition("?")
        if not base.startswith(("http://", "https://")):
            raise BadRequest(
                f"{url!r} is not the address of a server. Nothing was done; give its URL with its "
                "base URL, such as http://localhost:8888/ or https://hub/user/name/."
            )
        if token is None:  # as the server prints it, or as hubs set it
            found = [part[6:] for part in query.split("&") if part.startswith("token=")]
            token = found[0] if found else os.environ.get(TOKEN_VARIABLE)
        self.base = base.rstrip("/").removesuffix("/lab").removesuffix("/tree")
        self.headers = {"Authorization": f"token {token}"} if token else {}
        self.session = ""

    @property
    def api(self) -> str:
        return f"{self.base}{PREFIX}"

    def of(self, request: HttpRequest) -> dict[str, Any]:
        """Arguments of httpx's ``stream``."""
        accept = EVENT_STREAM if request.streams else "application/json"
        place = f"/sessions/{quote(self.session, safe='')}" if request.of_session else ""
        more = {} if request.body is None else {"json": dict(request.body)}
        return {
            "method": request.method,
            "url": f"{self.api}{place}{request.path}",
            "params": dict(request.query),
            "headers": {**self.headers, "Accept": accept},
            **more,
        }

    def failure(self, status: int, text: str) -> TimeTravelError:
        """The error that an answer tells of."""
        try:
            told = json.loads(text)
            name, message = str(told["error"]), str(told["message"])
        except (ValueError, KeyError, TypeError):
            name = message = ""
        if name and not name.startswith("Http"):
            return error_of(name, message)
        if status in (401, 403):
            return NotAllowed(
                f"The server {self.base} refused the request ({status}). Nothing was done; check "
                "the token, and what its user may do."
            )
        return ServerUnreachable(
            f"The server {self.base} answered {status}, not as one with time travel does. Is the "
            "URL complete (https://hub/user/name/), and does `jupyter server extension list` show "
            "jupyter_timetravel there?"
        )

    def unreachable(self, error: Exception) -> ServerUnreachable:
        return ServerUnreachable(
            f"The server {self.base} cannot be reached: {error or type(error).__name__}. What was "
            "asked may not have been done; check the address, and that the server runs."
        )

    def chosen(self, found: Sequence[Mapping[str, Any]], what: str) -> str:
        """The id of the session that is meant: one that runs, else one that is stored."""
        live = [one for one in found if one["live"]]
        ids = [str(one["id"]) for one in live or found]
        if len(ids) == 1:
            return ids[0]
        if not ids:
            raise NoSuchSession(
                f"The server {self.base} has no session of {what}. Nothing was done; open the "
                "notebook with the kernel Python 3 (time travel)."
            )
        raise NoSuchSession(
            f"The server {self.base} has several sessions of {what}: {', '.join(ids)}. Nothing was "
            "done; say which with session=…"
        )


def _one_of(kernel: str | None, notebook: str | None, session: str | None) -> None:
    if sum(name is not None for name in (kernel, notebook, session)) != 1:
        raise BadRequest("Give one of kernel, notebook and session. Nothing was done.")


class _Lines:
    """Server-sent events, a line at a time (each message is one line of data)."""

    def __init__(self) -> None:
        self._data: list[str] = []

    def take(self, line: str) -> dict[str, Any] | None:
        """A message that is complete with this line."""
        if line.startswith("data:"):
            self._data.append(line[5:].removeprefix(" "))
        elif not line and self._data:
            message: dict[str, Any] = json.loads("\n".join(self._data))
            self._data.clear()
            return message
        return None


def _outcome(message: Mapping[str, Any]) -> Result | None:
    """The result that a message of an operation's stream brings. Raises its error."""
    if message["type"] == "error":
        raise error_of(str(message["error"]), str(message["message"]))
    if message["type"] == "result":
        result: Result = message["result"]
        return result
    return None


def _content(message: Mapping[str, Any]) -> Result | None:
    """The event in a message of the stream of events. Raises the error that it tells of."""
    if message["type"] == "error":
        raise error_of(str(message["error"]), str(message["message"]))
    content: Result | None = message.get("content")
    return content


class AsyncHttpCarrier:
    """For asyncio; ``AsyncClient.at`` uses it."""

    def __init__(self, url: str, token: str | None) -> None:
        self._address = _Address(url, token)
        self._http = httpx.AsyncClient(follow_redirects=False)
        self._closing: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Close connections, soon."""
        with contextlib.suppress(RuntimeError):  # no loop runs: nothing can be closed any more
            self._closing = asyncio.get_running_loop().create_task(self.aclose())

    async def aclose(self) -> None:
        """Close connections."""
        await self._http.aclose()

    async def choose(
        self, *, kernel: str | None, notebook: str | None, session: str | None, timeout: float
    ) -> None:
        """Find the session that is meant. Raises NoSuchSession, ServerUnreachable, NotAllowed."""
        _one_of(kernel, notebook, session)
        address = self._address
        if notebook is not None:
            found = (await self._get("/sessions", {"notebook": notebook}, timeout))["sessions"]
            address.session = address.chosen(found, notebook)
        else:
            id = quote(kernel or session or "", safe="")
            address.session = str((await self._get(f"/sessions/{id}", {}, timeout))["id"])

    async def _get(self, path: str, query: dict[str, str], timeout: float) -> Any:
        address = self._address
        try:
            answer = await self._http.get(
                address.api + path, params=query, headers=address.headers, timeout=timeout
            )
        except httpx.TimeoutException as error:
            raise RequestTimeout(f"GET {path}", timeout) from error
        except httpx.HTTPError as error:
            raise address.unreachable(error) from error
        if answer.status_code != 200:
            raise address.failure(answer.status_code, answer.text)
        return answer.json()

    async def ask(self, command: Command[Any], timeout: float) -> Result:
        """What the session answers. Raises its TimeTravelError, RequestTimeout."""
        request = request_of(command.name, command.args)
        deadline = time.monotonic() + timeout
        try:
            async with self._http.stream(**self._address.of(request), timeout=timeout) as answer:
                if answer.status_code >= 300:
                    text = (await answer.aread()).decode()
                    raise self._address.failure(answer.status_code, text)
                if not request.streams:
                    result: Result = json.loads(await answer.aread())
                    return result
                lines = _Lines()
                async for line in answer.aiter_lines():
                    message = lines.take(line)
                    found = None if message is None else _outcome(message)
                    if found is not None:
                        return found
                    if time.monotonic() > deadline:
                        break
        except httpx.TimeoutException:
            pass
        except httpx.HTTPError as error:
            raise self._address.unreachable(error) from error
        raise RequestTimeout(command.name, timeout)

    async def listen(self, timeout: float) -> AsyncHttpEvents:
        """The events from now on. Raises what ``ask`` raises."""
        events = AsyncHttpEvents(self._http, self._address, timeout)
        await events.begin()
        return events


class AsyncHttpEvents:
    """Contents of events, taken in by a task."""

    def __init__(self, http: httpx.AsyncClient, address: _Address, timeout: float) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        request = HttpRequest("GET", "/events", {}, None, streams=True)
        limits = httpx.Timeout(timeout, read=_SILENCE_S)
        self._address = address
        self._context = http.stream(**address.of(request), timeout=limits)
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Wait until listening has begun. Raises what ``ask`` raises."""
        self._task = asyncio.get_running_loop().create_task(self._read())
        first = await self._queue.get()
        if isinstance(first, Exception):
            raise first
        if first is None:
            raise self._address.unreachable(ConnectionError("it closed the stream of events"))

    async def _read(self) -> None:
        lines = _Lines()
        try:
            async with self._context as answer:
                if answer.status_code != 200:
                    text = (await answer.aread()).decode()
                    self._queue.put_nowait(self._address.failure(answer.status_code, text))
                    return
                async for line in answer.aiter_lines():
                    message = lines.take(line)
                    if message is not None:
                        self._queue.put_nowait(message)
        except httpx.HTTPError as error:
            self._queue.put_nowait(self._address.unreachable(error))
        finally:
            self._queue.put_nowait(None)

    async def next(self, timeout: float | None) -> Result | None:
        """The next one; None if none comes within so many seconds, or the stream has ended."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._task is not None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                message = await asyncio.wait_for(self._queue.get(), left)
            except (asyncio.TimeoutError, TimeoutError):
                return None
            if message is None or isinstance(message, Exception):
                return None
            content = _content(message)
            if content is not None:
                return content
        return None

    async def close(self) -> None:
        """Stop listening; the second call does nothing."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])


class HttpCarrier:
    """Blocking; ``Client.at`` uses it: the same on an event loop of its own, in a thread."""

    def __init__(self, url: str, token: str | None) -> None:
        self._carrier = AsyncHttpCarrier(url, token)
        self._ends = ExitStack()
        self._portal = self._ends.enter_context(start_blocking_portal())
        self._ends.callback(lambda: self._run(self._carrier.aclose))

    def close(self) -> None:
        """Close connections; the second call does nothing."""
        self._ends.close()

    def choose(
        self, *, kernel: str | None, notebook: str | None, session: str | None, timeout: float
    ) -> None:
        """See ``AsyncHttpCarrier.choose``."""
        self._run(
            partial(
                self._carrier.choose,
                kernel=kernel,
                notebook=notebook,
                session=session,
                timeout=timeout,
            )
        )

    def ask(self, command: Command[Any], timeout: float) -> Result:
        """See ``AsyncHttpCarrier.ask``."""
        return self._run(self._carrier.ask, command, timeout)

    def listen(self, timeout: float) -> HttpEvents:
        """See ``AsyncHttpCarrier.listen``."""
        return HttpEvents(self._run, self._run(self._carrier.listen, timeout))

    def _run(self, work: Callable[..., Awaitable[T]], *args: Any) -> T:
        future = self._portal.start_task_soon(work, *args)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # whoever waits was interrupted
            raise


class HttpEvents:
    """See ``AsyncHttpEvents``."""

    def __init__(self, run: Callable[..., Any], events: AsyncHttpEvents) -> None:
        """run: does something asynchronous, and waits for it."""
        self._run = run
        self._events = events

    def next(self, timeout: float | None) -> Result | None:
        """See ``AsyncHttpEvents.next``."""
        found: Result | None = self._run(self._events.next, timeout)
        return found

    def close(self) -> None:
        """See ``AsyncHttpEvents.close``."""
        self._run(self._events.close)
