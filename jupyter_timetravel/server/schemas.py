"""What requests may hold and what answers hold, as JSON Schemas: docs/protocol.md in that form.

Requests are checked against these, so the OpenAPI document says what the server does. Answers may
gain fields; a client ignores those that it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from kernel_runtime.errors import BadRequest
from kernel_runtime.supervisor.restore_request import OPTIONS
from kernel_runtime.timeline.names import LONGEST_LABEL

Schema = dict[str, Any]

_LARGEST: Final = 10**9
_LONGEST: Final = 10_000
"""Characters of a text in a request."""
_MOST: Final = 10_000
"""Items of a list in a request."""

TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
NUMBER: Final[Schema] = {"type": "number"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}


def nullable(schema: Schema) -> Schema:
    """The same, or null."""
    if "$ref" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return {**schema, "type": [*kinds, "null"]}


def ref(name: str) -> Schema:
    """A schema of ``COMPONENTS``."""
    return {"$ref": f"#/components/schemas/{name}"}


def listed(schema: Schema) -> Schema:
    """A list of such."""
    return {"type": "array", "items": schema}


def answer(required: Mapping[str, Schema], **optional: Schema) -> Schema:
    """An object of an answer."""
    properties = {**required, **optional}
    return {"type": "object", "required": list(required), "properties": properties}


def request(required: Mapping[str, Schema], **optional: Schema) -> Schema:
    """An object of a request: nothing else may be in it."""
    return {**answer(required, **optional), "additionalProperties": False}


# Requests

SPEC: Final[Schema] = {
    "description": "A checkpoint: its number, -1 for the newest on the present branch, its id, its "
    "label, or its comment.",
    "type": ["integer", "string"],
    "minimum": -_LARGEST,
    "maximum": _LARGEST,
    "maxLength": _LONGEST,
}
_WORDS: Final[Schema] = {"type": "string", "maxLength": _LONGEST}
_LABEL: Final[Schema] = {"type": ["string", "null"], "minLength": 1, "maxLength": LONGEST_LABEL}


def _with_default(schema: Schema, default: Any) -> Schema:
    return {**schema, "default": default}


def _with_description(schema: Schema, text: str) -> Schema:
    return {**schema, "description": text}


_NO: Final = _with_default(FLAG, False)
_NAME: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 100}
_TIMEOUT: Final[Schema] = {
    "type": "number",
    "minimum": 0,
    "maximum": 3600,
    "default": 120,
    "description": "Seconds until all members must be at rest.",
}
_NAMES: Final[Schema] = {
    "type": "array",
    "maxItems": _MOST,
    "items": {"type": "string", "minLength": 1, "maxLength": _LONGEST},
}

BODIES: Final[Mapping[str, Schema]] = {
    "checkpoint": request(
        {}, comment=_with_default(_WORDS, ""), label=_with_default(_LABEL, None), pin=_NO
    ),
    "patch": {
        **request({}, label=_LABEL, comment=_WORDS, pinned=FLAG),
        "minProperties": 1,
    },
    "restore": request(
        {},
        checkpoint=_with_default(SPEC, -1),
        only={"enum": ["process", "files", None], "default": None},
        vars={
            **_NAMES,
            "minItems": 1,
            "description": "Bring these variables into the present, and leave all else as it is. "
            "Goes with checkpoint alone; the answer is a Brought.",
        },
        paths={
            **_NAMES,
            "minItems": 1,
            "description": "Likewise these files and directories of the workspace: absolute, or "
            "below its first directory.",
        },
        **{name: _NO for name in OPTIONS if name != "only"},
    ),
    "resume": request({}, force=_NO, reseed=_NO),
    "replay": request(
        {"checkpoint": SPEC},
        skip={"type": "array", "maxItems": _MOST, "items": SPEC, "default": []},
        until=_with_default(nullable(SPEC), None),
        stop_on_difference=_NO,
        dry_run=_NO,
    ),
    "verify": request({}, checkpoint=_with_default(nullable(SPEC), None)),
    "reset": request({}, process=_NO),
    "apply": request({}, paths=_with_default(_NAMES, []), dry_run=_NO, force=_NO),
    "config": {"type": "object", "maxProperties": 100},
    "export": request(
        {},
        format={"enum": ["timeline", "notebook"], "default": "timeline"},
        checkpoint=_with_default(nullable(SPEC), None),
        environment=_with_default(FLAG, True),
        path={
            "type": ["string", "null"],
            "minLength": 1,
            "maxLength": 4096,
            "default": None,
            "description": "Where to write it, below the server's directory; null: the answer is "
            "the file.",
        },
        force=_NO,
    ),
    "group_create": request(
        {
            "group": _with_description(_NAME, "How it is called."),
            "members": {
                **_NAMES,
                "minItems": 1,
                "maxItems": 100,
                "description": "Running sessions of this server, each a kernel's id or the path of "
                "its notebook; NAME= before it says how it is called in the group.",
            },
        }
    ),
    "group_checkpoint": request(
        {}, comment=_with_default(_WORDS, ""), allow_partial=_NO, timeout=_TIMEOUT
    ),
    "group_restore": request(
        {},
        record=_with_default(
            _with_description(
                nullable(_WORDS), "G3, -1 for the newest, a comment, or how an id begins."
            ),
            None,
        ),
        member=_with_default(
            _with_description(nullable(_NAME), "This one alone; the others go on."), None
        ),
        undo=_NO,
        dry_run=_NO,
        allow_partial=_NO,
        timeout=_TIMEOUT,
    ),
}
"""Bodies by command."""

# shorter than in a body: a server takes 64 KiB of address and headers
_SHORT_SPEC: Final[Schema] = {**SPEC, "maxLength": LONGEST_LABEL}

QUERIES: Final[Mapping[str, Mapping[str, Schema]]] = {
    "sessions": {"notebook": {"type": "string", "maxLength": 2000}, "live": FLAG},
    "list": {"include_auto": _with_default(FLAG, True), "history": _SHORT_SPEC},
    "cells": {"since": _SHORT_SPEC, "until": _SHORT_SPEC},
    "diff": {"a": _SHORT_SPEC, "b": _SHORT_SPEC},
    "outside": {"each": _NO},
    "groups": {"session": {"type": "string", "minLength": 1, "maxLength": 200}},
}
"""Query parameters by command."""

REQUIRED: Final = frozenset({("diff", "a")})
"""Query parameters that must be there."""


# Answers

_OBJECT: Final[Schema] = {"type": "object"}
_SIZE: Final = nullable(COUNT)

COMPONENTS: Final[Mapping[str, Schema]] = {
    "Error": answer(
        {"error": TEXT, "message": TEXT, "hint": TEXT},
        reason=nullable(TEXT),
    ),
    "Session": answer(
        {
            "id": TEXT,
            "live": FLAG,
            "kernel_id": nullable(TEXT),
            "timeline": nullable(TEXT),
            "notebook": nullable(TEXT),
            "file": nullable(TEXT),
            "kernel_name": TEXT,
            "state": TEXT,
            "time_travel": nullable(FLAG),
            "checkpoints": nullable(COUNT),
            "head": nullable(COUNT),
            "last_at": nullable(TEXT),
            "trusted": FLAG,
            "problem": nullable(TEXT),
        }
    ),
    "Coordinate": answer(
        {
            "epoch": TEXT,
            "incarnation": COUNT,
            "execution_count": COUNT,
            "cell_id": nullable(TEXT),
            "msg_id": nullable(TEXT),
        }
    ),
    "Capture": answer(
        {
            "kind": {"enum": ["process", "filesystem", "namespace"]},
            "engine": TEXT,
            "state": {"enum": ["pending", "ready", "failed", "evicted"]},
            "bytes": COUNT,
            "error": nullable(TEXT),
            "not_captured": listed(answer({"kind": TEXT, "subject": TEXT, "detail": TEXT})),
        },
        verified_at=nullable(TEXT),
        pause_ms=nullable(NUMBER),
        children=nullable(COUNT),
    ),
    "Record": answer(
        {
            "id": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
            "number": COUNT,
            "parent": nullable(TEXT),
            "created_at": {"type": "string", "format": "date-time"},
            "comment": TEXT,
            "label": nullable(TEXT),
            "pinned": FLAG,
            "is_auto": FLAG,
            "reason": {"enum": ["cell", "manual", "safety", "part", "restart", "start"]},
            "code": TEXT,
            "is_head": FLAG,
            "effects": COUNT,
            "coordinate": ref("Coordinate"),
            "captures": listed(ref("Capture")),
        },
        history=listed(TEXT),
    ),
    "Summary": answer(
        {
            "type": nullable(TEXT),
            "size": _SIZE,
            "shape": nullable(TEXT),
            "value": nullable(TEXT),
        }
    ),
    "Variable": {"allOf": [ref("Summary"), answer({"name": TEXT})]},
    "Variables": answer(
        {
            "added": listed(ref("Variable")),
            "removed": listed(ref("Variable")),
            "changed": listed(
                answer({"name": TEXT, "before": ref("Summary"), "after": ref("Summary")})
            ),
        }
    ),
    "Change": answer(
        {"path": TEXT, "root": TEXT, "kind": TEXT, "size_before": _SIZE, "size_after": _SIZE}
    ),
    "Package": answer(
        {
            "manager": TEXT,
            "name": TEXT,
            "before": nullable(TEXT),
            "after": nullable(TEXT),
            "where": TEXT,
        }
    ),
    "EnvironmentVariable": answer(
        {"name": TEXT, "before": nullable(TEXT), "after": nullable(TEXT)}
    ),
    "Effect": answer(
        {
            "kind": TEXT,
            "subject": TEXT,
            "count": COUNT,
            "at": NUMBER,
            "local": FLAG,
            "cell": TEXT,
            "text": TEXT,
        }
    ),
    "Cell": answer(
        {
            "id": TEXT,
            "kind": TEXT,
            "source": TEXT,
            "cell_id": nullable(TEXT),
            "execution_count": COUNT,
            "outcome": {"enum": ["ok", "error", "aborted"]},
            "ename": nullable(TEXT),
            "started_at": NUMBER,
            "duration_s": NUMBER,
            "before": nullable(TEXT),
            "checkpoint": nullable(TEXT),
            "number": nullable(COUNT),
            "result": nullable(TEXT),
            "output": nullable(TEXT),
            "effects": listed(ref("Effect")),
            "compensations": listed(_OBJECT),
        }
    ),
    "Differences": answer(
        {
            "variables": ref("Variables"),
            "files": listed(ref("Change")),
            "packages": listed(ref("Package")),
            "environment": listed(ref("Change")),
            "environment_complete": FLAG,
            "environ": listed(ref("EnvironmentVariable")),
        }
    ),
    "RestoreResult": {
        "allOf": [
            ref("Differences"),
            answer(
                {
                    "checkpoint": ref("Record"),
                    "safety": nullable(ref("Record")),
                    "dry_run": FLAG,
                    "kept_aside": listed(answer({"path": TEXT, "saved_as": TEXT, "reason": TEXT})),
                    "threads": answer({"brought_back": COUNT, "ids_kept": FLAG}),
                    "process": nullable(TEXT),
                    "effects": listed(ref("Effect")),
                    "compensations": listed(_OBJECT),
                    "warnings": listed(TEXT),
                    "took_ms": NUMBER,
                    "text": TEXT,
                }
            ),
        ]
    },
    "Brought": answer(
        {
            "checkpoint": ref("Record"),
            "safety": ref("Record"),
            "names": listed(TEXT),
            "notices": listed(listed(TEXT)),
            "text": TEXT,
        },
        files=listed(ref("Change")),
    ),
    "ReplayResult": answer(
        {
            "checkpoint": ref("Record"),
            "restored": nullable(ref("RestoreResult")),
            "cells": listed(_OBJECT),
            "not_run": listed(_OBJECT),
            "effects": listed(ref("Effect")),
            "stopped": {"enum": [None, "difference", "interrupted", "died"]},
            "dry_run": FLAG,
            "took_ms": NUMBER,
            "text": TEXT,
        }
    ),
    "Verified": answer(
        {"checkpoint": ref("Record"), "problems": listed(TEXT)},
    ),
    "GroupRecord": answer(
        {
            "id": TEXT,
            "number": COUNT,
            "title": TEXT,
            "created_at": {"type": "string", "format": "date-time"},
            "kind": {"enum": ["checkpoint", "safety"]},
            "comment": TEXT,
            "complete": FLAG,
            "members": {
                "type": "object",
                "additionalProperties": answer(
                    {"timeline": TEXT, "checkpoint": TEXT, "number": COUNT}
                ),
            },
            "missing": {"type": "object", "additionalProperties": TEXT},
        }
    ),
    "Group": answer(
        {
            "group": TEXT,
            "members": listed(
                answer(
                    {"name": TEXT, "timeline": TEXT, "notebook": nullable(TEXT)},
                    connection_file=TEXT,
                    state=TEXT,
                    at=TEXT,
                )
            ),
            "mixed": FLAG,
            "unfinished": FLAG,
            "records": listed(ref("GroupRecord")),
        },
        text=TEXT,
    ),
    "Status": answer(
        {
            "timeline": TEXT,
            "head": nullable(ref("Record")),
            "busy": FLAG,
            "config": _OBJECT,
            "memory": _OBJECT,
            "engines": _OBJECT,
            "workspace": listed(TEXT),
            "environment": _OBJECT,
            "limits": listed(TEXT),
            "counts": _OBJECT,
            "last_cow_tax_ms": nullable(NUMBER),
        },
        store=_OBJECT,
    ),
}

ANSWERS: Final[Mapping[str, Schema]] = {
    "about": answer({"version": TEXT, "protocol_version": COUNT, "events": FLAG}),
    "sessions": answer({"sessions": listed(ref("Session"))}),
    "session": ref("Session"),
    "status": ref("Status"),
    "list": answer(
        {
            "checkpoints": listed(ref("Record")),
            "parents": {"type": "object", "additionalProperties": nullable(TEXT)},
            "head": nullable(TEXT),
        }
    ),
    "checkpoint": answer(
        {"checkpoint": ref("Record"), "pause_ms": NUMBER, "problem": nullable(TEXT)}
    ),
    "get": answer(
        {
            "checkpoint": ref("Record"),
            "variables": {"type": "object", "additionalProperties": ref("Summary")},
            "cells": listed(ref("Cell")),
        },
        restorable_here=listed(TEXT),
    ),
    "patch": answer({"checkpoint": ref("Record")}),
    "delete": answer({"deleted": ref("Record")}),
    "cells": answer({"cells": listed(ref("Cell"))}),
    "diff": ref("Differences"),
    "outside": answer(
        {
            "directories": listed(_OBJECT),
            "caches": answer({"files": COUNT, "bytes": COUNT}),
            "files": listed(answer({"path": TEXT, "kind": TEXT, "size": _SIZE})),
            "complete": FLAG,
        }
    ),
    "restore": {"anyOf": [ref("RestoreResult"), ref("Brought")]},
    "resume": ref("RestoreResult"),
    "replay": ref("ReplayResult"),
    "verify": answer({"verified": listed(ref("Verified")), "text": TEXT}),
    "reset": answer(
        {
            "safety": ref("Record"),
            "process": FLAG,
            "packages": listed(ref("Package")),
            "files": listed(ref("Change")),
            "environment": listed(ref("Change")),
            "environment_complete": FLAG,
            "took_ms": NUMBER,
            "text": TEXT,
        }
    ),
    "apply": answer(
        {
            "done": listed(answer({"path": TEXT, "action": TEXT, "note": TEXT})),
            "bytes": COUNT,
            "dry_run": FLAG,
            "took_ms": NUMBER,
            "text": TEXT,
        }
    ),
    "config": answer({"config": _OBJECT}),
    "groups": answer({"groups": listed(ref("Group"))}),
    "group": ref("Group"),
    "group_create": ref("Group"),
    "group_checkpoint": answer(
        {"group": TEXT, "record": ref("GroupRecord"), "took_ms": NUMBER, "text": TEXT}
    ),
    "group_restore": answer(
        {
            "group": TEXT,
            "dry_run": FLAG,
            "members": {"type": "object", "additionalProperties": ref("RestoreResult")},
            "took_ms": NUMBER,
            "text": TEXT,
        },
        record=ref("GroupRecord"),
        safety=nullable(ref("GroupRecord")),
        member=TEXT,
        title=TEXT,
        conflicts=listed(answer({"path": TEXT, "writers": listed(TEXT)})),
    ),
    "export": answer({"path": nullable(TEXT), "bytes": COUNT, "checkpoints": COUNT, "text": TEXT}),
}
"""Answers by command."""


@cache
def _validator(command: str) -> Any:
    from jsonschema import Draft202012Validator  # jupyter_events brings it

    return Draft202012Validator(BODIES[command])


def check_body(command: str, body: Any) -> dict[str, Any]:
    """The body of a request. Raises BadRequest for one that the schema does not allow."""
    for error in _validator(command).iter_errors(body):
        where = ".".join(map(str, error.absolute_path)) or "the body"
        raise BadRequest(f"{where}: {error.message[:300]}. Nothing was done.")
    checked: dict[str, Any] = body
    return checked
