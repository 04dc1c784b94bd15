"""``timetravel_event`` on IOPub; silent until a client has asked, so that no other sees any."""

from __future__ import annotations

from typing import Any

from kernel_runtime.supervisor.channels import Channels

VERSION = 1


class Events:
    """Publishes events of docs/protocol.md."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._sequence = 0
        self.wanted = False

    def publish(self, event: str, **fields: Any) -> None:
        """Publish one event if anyone listens."""
        if not self.wanted:
            return
        self._sequence += 1
        content = {"version": VERSION, "event": event, "sequence": self._sequence}
        content.update({name: _without_history(value) for name, value in fields.items()})
        self._channels.send("iopub", "timetravel_event", content, None)


def _without_history(value: Any) -> Any:
    """A record as events carry it: its history would make each event longer than the last."""
    if isinstance(value, dict) and "history" in value:
        return {key: item for key, item in value.items() if key != "history"}
    return value
