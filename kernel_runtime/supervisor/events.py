"""``timetravel_event`` on IOPub; silent until a client has asked, so that no other sees any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernel_runtime.supervisor.channels import Channels
from kernel_runtime.timeline.model import Checkpoint

VERSION = 1


class Events:
    """Publishes events of docs/protocol.md."""

    def __init__(self, channels: Channels, record: Callable[[Checkpoint], dict[str, Any]]) -> None:
        """record: a checkpoint as docs/protocol.md writes it, without its history."""
        self._channels = channels
        self._record = record
        self._sequence = 0
        self.wanted = False

    def publish(self, event: str, **fields: Any) -> None:
        """Publish one event if anyone listens; a checkpoint is told as its record."""
        if not self.wanted:
            return
        self._sequence += 1
        content = {"version": VERSION, "event": event, "sequence": self._sequence}
        content.update({name: self._told(value) for name, value in fields.items()})
        self._channels.send("iopub", "timetravel_event", content, None)

    def _told(self, value: Any) -> Any:
        return self._record(value) if isinstance(value, Checkpoint) else _without_history(value)


def _without_history(value: Any) -> Any:
    """A record as events carry it: its history would make each event longer than the last."""
    if isinstance(value, dict) and "history" in value:
        return {key: item for key, item in value.items() if key != "history"}
    return value
