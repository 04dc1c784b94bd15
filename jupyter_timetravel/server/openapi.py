"""The OpenAPI 3.1 document of the interface, put together from ``routes`` and ``schemas``."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any, Final

from jupyter_timetravel.server import schemas
from jupyter_timetravel.server.routes import (
    EVENT_STREAM,
    GROUP_ROUTES,
    ROUTES,
    SESSION,
    Action,
    Route,
)
from jupyter_timetravel.server.schemas import Schema

_JSON: Final = "application/json"

_PARAMETERS: Final[dict[str, Schema]] = {
    "session": {
        "description": "The id of a running kernel, or of a timeline (or how it begins: six digits "
        "or more).",
        "schema": {"type": "string", "minLength": 1, "maxLength": 200},
    },
    "checkpoint": {
        "description": "A checkpoint's number, -1, its id, its label or its comment.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 1000},
    },
    "group": {
        "description": "The name of a group of sessions.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 100},
    },
}

_ERRORS: Final[dict[str, str]] = {
    "400": "The request is not one of these. Nothing was done.",
    "403": "The user is not known, or may not do that, or what was stored is not trusted.",
    "404": "There is no such session, checkpoint or group. Nothing was done.",
    "409": "Not now: a cell runs that does not end, the checkpoint is still needed, a kernel is "
    "needed, or has the session. Nothing was changed.",
    "413": "The body is too large.",
    "500": "It failed on the way; the message says what holds.",
    "501": "The kernel has no time travel.",
    "502": "The kernel ended before it answered, or its gateway does not hand on what is asked.",
    "504": "The kernel did not answer.",
}

PATCH: Final = Route(
    "patch", "PATCH", "/checkpoints/{checkpoint}", "write", "Change label, comment, pin."
)
CONFIG: Final = (
    Route("config", "GET", "/config", "read", "Options of the kernel."),
    Route("config", "PATCH", "/config", "execute", "Change options of the kernel."),
)
EXPORT: Final = Route("export", "POST", "/export", "execute", "Export, as one file.", True)
EVENTS: Final = Route("events", "GET", "/events", "read", "What happens, as it happens.")


def document(server: str) -> dict[str, Any]:
    """The whole document. server: the path that the others begin at."""
    paths: dict[str, Any] = {}
    _add(paths, "", _about("about", "What answers here."))
    _add(paths, "/openapi.json", _about("document", "This document."))
    _add(paths, "/sessions", _about("sessions", "Sessions of running kernels, and stored ones."))
    _add(paths, SESSION, _about("session", "One session."))
    for route in (*ROUTES, PATCH, *CONFIG, EXPORT, EVENTS):
        _add(paths, SESSION + route.path, (route.method, _operation(route)))
    for route in GROUP_ROUTES:
        _add(paths, route.path, (route.method, _operation(route)))
    for path, item in paths.items():
        names = re.findall(r"{(\w+)}", path)
        if names:
            item["parameters"] = [
                {"name": name, "in": "path", "required": True, **_PARAMETERS[name]}
                for name in names
            ]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Time travel for Jupyter sessions",
            "version": version("jupyter_timetravel"),
            "license": {"name": "BSD-3-Clause", "identifier": "BSD-3-Clause"},
            "description": "x-action says which permission on the resource `timetravel` an "
            "operation needs.",
        },
        "servers": [{"url": server}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": dict(schemas.COMPONENTS),
            "securitySchemes": {
                "token": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "`token TOKEN`, with a token of the server's.",
                }
            },
        },
    }


def _add(paths: dict[str, Any], path: str, operation: tuple[str, Any]) -> None:
    paths.setdefault(path or "/", {})[operation[0].lower()] = operation[1]


def _about(name: str, summary: str) -> tuple[str, Any]:
    return "GET", _operation(Route(name, "GET", "", "read", summary))


def _operation(route: Route) -> dict[str, Any]:
    name = route.command
    operation: dict[str, Any] = {
        "operationId": f"change_{name}" if route == CONFIG[1] else name,
        "summary": route.summary,
        "x-action": route.action,
        "parameters": _queries(name) if route.method == "GET" else [],
        "responses": {**_answers(route), **_failures()},
    }
    if route.method in ("POST", "PATCH"):
        body = schemas.BODIES[name]
        needed = bool(body.get("required") or body.get("minProperties"))
        operation["requestBody"] = {"required": needed, "content": {_JSON: {"schema": body}}}
    return operation


def _queries(name: str) -> list[dict[str, Any]]:
    return [
        {
            "name": parameter,
            "in": "query",
            "required": (name, parameter) in schemas.REQUIRED,
            "schema": schema,
        }
        for parameter, schema in schemas.QUERIES.get(name, {}).items()
    ]


def _answers(route: Route) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if route.command == "events":
        content[EVENT_STREAM] = {"schema": schemas.TEXT}
    else:
        content[_JSON] = {"schema": schemas.ANSWERS.get(route.command, {"type": "object"})}
    if route.streams:
        content[EVENT_STREAM] = {"schema": schemas.TEXT}
    if route.command == "export":
        content["application/zstd"] = {"schema": {"type": "string", "format": "binary"}}
        content[_JSON] = {"schema": {"type": "object"}}  # what was written, or the notebook itself
    status = "201" if route.command in _CREATING else "200"
    return {status: {"description": route.summary, "content": content}}


_CREATING: Final = ("checkpoint", "group_create", "group_checkpoint")


def _failures() -> dict[str, Any]:
    content = {_JSON: {"schema": schemas.ref("Error")}}
    return {status: {"description": why, "content": content} for status, why in _ERRORS.items()}


def actions() -> dict[tuple[str, str], Action]:
    """Which permission each verb of each path needs, as the document says it."""
    return {
        (path, verb.upper()): operation["x-action"]
        for path, item in document("")["paths"].items()
        for verb, operation in item.items()
        if verb != "parameters"
    }
