"""Messages of the time-travel protocol: checked and read, for blocking and asyncio clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jupyter_client.session import Session

from jupyter_timetravel.commands import VERSION, error_of
from jupyter_timetravel.reading import read_record
from jupyter_timetravel.records import Event
from kernel_runtime.errors import TimeTravelError


class NoTimeTravel(TimeTravelError):
    """The kernel does not speak the time-travel protocol, or not this version of it."""

    def __init__(self, implementation: str, found: object = None) -> None:
        why = (
            "has no time travel"
            if found is None
            else f"speaks version {found} of the time-travel protocol, this client {VERSION}"
        )
        mend = (
            'Start the kernel "Python 3 (time travel)" (python3-timetravel; see '
            "`jupyter timetravel install`)."
            if found is None
            else "Use the same version of jupyter_timetravel on both sides."
        )
        super().__init__(f"The kernel ({implementation}) {why}. It runs on as it was. {mend}")


class RequestTimeout(TimeTravelError):
    """The kernel did not answer in time. What was asked may still happen."""

    def __init__(self, command: str, timeout: float) -> None:
        super().__init__(
            f"The kernel did not answer {command} within {timeout:g} seconds. It may still do what "
            "was asked; look with status or list, or give a longer timeout."
        )


class KernelGone(RequestTimeout):
    """The kernel ended or was restarted before it answered. What was asked may have been done."""

    def __init__(self, command: str) -> None:
        TimeTravelError.__init__(
            self,
            f"The kernel ended before it answered {command}. What was asked may have been done; "
            "look with list, which tells what is stored.",
        )


def check_kernel_info(content: Mapping[str, Any]) -> None:
    """Raise NoTimeTravel unless the kernel speaks our version."""
    name = str(content.get("implementation", "unknown"))
    told = content.get("timetravel")
    if not isinstance(told, Mapping):
        raise NoTimeTravel(name)
    if told.get("version") != VERSION:
        raise NoTimeTravel(name, told.get("version"))


def read_reply(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The result that a ``timetravel_reply`` brings. Raises the error that it brings instead."""
    if content.get("status") == "ok":
        result: Mapping[str, Any] = content["result"]
        return result
    raise error_of(str(content.get("ename")), str(content.get("evalue")))


def read_message(session: Session, frames: Sequence[bytes]) -> dict[str, Any]:
    """One message as jupyter_client has it. Raises ValueError if its signature is not right."""
    _, parts = session.feed_identities(list(frames))
    message: dict[str, Any] = session.deserialize(parts)
    return message


def is_answer_to(message: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    """Whether a message was sent because of that request."""
    parent = message["parent_header"].get("msg_id")
    return bool(parent == request["header"]["msg_id"])


def no_history(id: str) -> tuple[str, ...]:
    """Stands in where a record's history cannot be had without awaiting."""
    raise TimeTravelError(
        "A record from an event carries no history here. Nothing else is wrong with it; "
        f"`await client.get({id!r})` has it."
    )


def event_of(message: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The content of an event's message, or None if it is something else."""
    if message["header"]["msg_type"] != "timetravel_event":
        return None
    content: Mapping[str, Any] = message["content"]
    return content


class EventReader:
    """Tells events from other messages on IOPub, and counts those that were missed."""

    def __init__(self, history_of: Callable[[str], tuple[str, ...]]) -> None:
        self._history_of = history_of
        self._last: int | None = None

    def read(self, message: Mapping[str, Any]) -> Event | None:
        """The event in a message, or None if it is something else."""
        content = event_of(message)
        return None if content is None else self.read_content(content)

    def read_content(self, content: Mapping[str, Any]) -> Event:
        """The event that a ``timetravel_event`` brings."""
        sequence = int(content["sequence"])
        missed = 0 if self._last is None else max(0, sequence - self._last - 1)
        self._last = sequence
        data = content.get("checkpoint")
        checkpoint = None
        if isinstance(data, Mapping) and "created_at" in data:  # progress names it in short
            checkpoint = read_record(data, lambda: self._history_of(data["id"]))
        return Event(str(content["event"]), sequence, missed, content, checkpoint)
