"""Which HTTP request carries which command of docs/protocol.md: the server, its OpenAPI document
and the client read it here.

A path parameter and the names in a query or a JSON body are those of the command's arguments. The
answer is the command's result as the protocol has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import quote

from kernel_runtime.timeline.names import Spec

Action = Literal["read", "write", "execute"]
"""What jupyter_server's authorizer is asked for."""

PREFIX: Final = "/api/timetravel"
SESSION: Final = "/sessions/{session}"
EVENT_STREAM: Final = "text/event-stream"
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True)
class Route:
    """One verb of one path below a session's; ``streams``: it tells its progress when asked."""

    command: str
    method: str
    path: str
    action: Action
    summary: str
    streams: bool = False


ROUTES: Final = (
    Route("status", "GET", "/status", "read", "Where the session stands."),
    Route("list", "GET", "/checkpoints", "read", "Checkpoints, oldest first."),
    Route("checkpoint", "POST", "/checkpoints", "write", "Make a checkpoint."),
    Route("get", "GET", "/checkpoints/{checkpoint}", "read", "One, with variables and cells."),
    Route("delete", "DELETE", "/checkpoints/{checkpoint}", "write", "Delete a checkpoint."),
    Route("cells", "GET", "/cells", "read", "The cells that led from one to another."),
    Route("diff", "GET", "/diff", "read", "What happened from a to b."),
    Route("outside", "GET", "/outside", "read", "What was written outside of the workspace."),
    Route("restore", "POST", "/restore", "execute", "Go back, or bring single things back.", True),
    Route("resume", "POST", "/resume", "execute", "Go on where the last kernel stood.", True),
    Route("replay", "POST", "/replay", "execute", "Go back and run cells again.", True),
    Route("verify", "POST", "/verify", "execute", "Load what is on the disk for real.", True),
    Route("reset", "POST", "/reset", "execute", "Throw away what is outside.", True),
    Route("apply", "POST", "/apply", "execute", "Copy files of that to the machine.", True),
)
"""Commands that are one route each. PATCH and ``/config`` stand for several: ``request_of``."""

GROUP_ROUTES: Final = (
    Route("groups", "GET", "/groups", "read", "Groups of sessions, with their records."),
    Route("group_create", "POST", "/groups", "write", "Make a group of running sessions."),
    Route("group", "GET", "/groups/{group}", "read", "One group, and where its members are."),
    Route(
        "group_checkpoint",
        "POST",
        "/groups/{group}/checkpoints",
        "write",
        "Capture all members at one moment.",
        True,
    ),
    Route(
        "group_restore",
        "POST",
        "/groups/{group}/restore",
        "execute",
        "Take all members back, or one.",
        True,
    ),
)
"""Below no session's path."""

BY_COMMAND: Final[Mapping[str, Route]] = {
    route.command: route for route in (*ROUTES, *GROUP_ROUTES)
}


@dataclass(frozen=True)
class HttpRequest:
    """What to send, below a session's path; ``streams``: it can tell its progress.

    ``of_session``: false for what is below no session's path.
    """

    method: str
    path: str
    query: Mapping[str, str]
    body: Mapping[str, Any] | None
    streams: bool = False
    of_session: bool = True


def request_of(command: str, args: Mapping[str, Any]) -> HttpRequest:
    """The request that carries a command."""
    rest = dict(args)
    if command in ("label", "pin", "comment"):
        return HttpRequest("PATCH", checkpoint_path(rest.pop("checkpoint")), {}, rest)
    if command == "config":
        changes = rest.get("set") or None
        return HttpRequest("PATCH" if changes else "GET", "/config", {}, changes)
    if command == "bring":
        command = "restore"
        if "names" in rest:
            rest["vars"] = rest.pop("names")
    route = BY_COMMAND[command]
    path = route.path
    of_session = route not in GROUP_ROUTES
    if "{group}" in path:
        path = path.replace("{group}", quote(str(rest.pop("group")), safe=""))
    if "{checkpoint}" in path:
        path = checkpoint_path(rest.pop("checkpoint"))
    if route.method in ("GET", "DELETE"):
        query = {name: _text(value) for name, value in rest.items() if value is not None}
        return HttpRequest(route.method, path, query, None, of_session=of_session)
    return HttpRequest(route.method, path, {}, rest, route.streams, of_session)


def checkpoint_path(checkpoint: Spec) -> str:
    """Of one checkpoint, below its session's."""
    return f"/checkpoints/{quote(str(checkpoint), safe='')}"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def spec_of(text: str) -> Spec:
    """A checkpoint's name as it stands in a path or a query: digits are a number."""
    return int(text) if _NUMBER.fullmatch(text) else text
