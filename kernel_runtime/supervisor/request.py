"""One message of a client that the executor is to handle, and what has become of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import field
from typing import Any

from kernel_runtime.later import dataclass
from kernel_runtime.supervisor.channels import Message
from kernel_runtime.timeline.cells import OUTPUT_LENGTH


@dataclass
class Request:
    """A message from a client that the executor shall handle."""

    identities: list[bytes]
    message: Message
    frames: list[bytes]  # header, parent, metadata, content, buffers …: as they came
    content: dict[str, Any] = field(default_factory=dict)
    reply: dict[str, Any] | None = None
    replied: bool = False
    leaving: bool = False  # its cell asked for a restore: the supervisor gives its reply
    begun: bool = False  # the executor has said that it is busy with it
    when_begun: Callable[[], object] | None = None
    input_published: int | None = None  # the execution count under which it ran
    result: str | None = None  # what it showed as its result, as text
    output: list[str] = field(default_factory=list)
    """The beginning of what it printed: `note_output`."""
    output_room: int = OUTPUT_LENGTH
    inner: asyncio.Future[None] | None = None
    """Done when it has ended, for a cell that the supervisor itself runs (inner.py): what it
    prints and shows goes to clients, its status, input and reply do not."""

    def note_output(self, text: str) -> None:
        """It printed this; no more than is kept of it is noted."""
        if self.output_room > 0:
            self.output.append(text[: self.output_room])
            self.output_room -= len(self.output[-1])

    @property
    def id(self) -> str:
        msg_id: str = self.message["header"]["msg_id"]
        return msg_id

    @property
    def type(self) -> str:
        msg_type: str = self.message["header"]["msg_type"]
        return msg_type

    @property
    def is_cell(self) -> bool:
        """Whether it runs code of the user's that can change the session."""
        return self.type == "execute_request" and not self.content.get("silent", False)

    @property
    def has_cell(self) -> bool:
        """The same of one whose content has not been read yet."""
        return self.type == "execute_request" and not json.loads(self.frames[3]).get("silent")

    @property
    def code(self) -> str:
        return str(self.content.get("code", ""))

    @property
    def cell_id(self) -> str | None:
        value = self.message["metadata"].get("cellId")
        return str(value) if value is not None else None
