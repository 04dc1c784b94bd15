"""A session with a running kernel: commands go to it as they are, progress is what it publishes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, Final

from jupyter_timetravel.records import Result
from jupyter_timetravel.server.link import Link
from jupyter_timetravel.wire import event_of

Tell = Callable[[Mapping[str, Any]], None]
"""Takes a message of progress: its ``type`` is info, stdout, stderr or error."""

_STEPS: Final = {
    "plan": "looking at what changes",
    "safety": "making the safety checkpoint",
    "stop": "stopping the present process",
    "filesystem": "bringing files back",
    "process": "bringing memory back",
    "answer": "answering requests in flight",
}
_LAST: Final = {
    "restore": "restore_finished",
    "resume": "restore_finished",
    "replay": "replay_finished",
}
"""The event after which nothing more is published of a command."""
_LAST_S: Final = 2.0


class LiveSession:
    """One kernel of this server."""

    def __init__(self, kernel_id: str, link: Link) -> None:
        self.id = kernel_id
        self._link = link

    async def run(self, command: str, args: Mapping[str, Any], tell: Tell | None = None) -> Result:
        """The kernel's result of a command. Raises its TimeTravelError."""
        if tell is None:
            return await self._link.run(command, args)
        async with self._link.messages() as messages:
            last = _LAST.get(command, "")
            telling = asyncio.get_running_loop().create_task(_tell_all(messages, tell, last))
            try:
                result = await self._link.run(command, args)
                if last and not args.get("dry_run"):
                    # it comes another way, and may be on it still; it is not worth a long wait
                    await asyncio.wait([telling], timeout=_LAST_S)
                return result
            finally:
                telling.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await telling

    async def events(self) -> AsyncGenerator[Result, None]:
        """Contents of ``timetravel_event``; the first is empty and says that listening began."""
        async with self._link.messages(only_events=True) as messages:
            yield {}
            async for message in messages:
                content = event_of(message)
                if content is not None:
                    yield content


async def _tell_all(messages: AsyncIterator[dict[str, Any]], tell: Tell, last: str) -> None:
    # what a cell prints that ran before is not this operation's; a replay holds all others back
    replaying = False
    async for message in messages:
        content = event_of(message)
        if content is not None:
            replaying = replaying or content["event"] == "replay_progress"
            text = _told(content)
            if text:
                tell({"type": "info", "text": text})
            if content["event"] == last:
                return
        elif replaying and message["header"]["msg_type"] == "stream":
            tell({"type": message["content"]["name"], "text": message["content"]["text"]})
        elif replaying and message["header"]["msg_type"] == "error":
            error = message["content"]
            tell({"type": "stderr", "text": f"{error['ename']}: {error['evalue']}\n"})


def _told(event: Mapping[str, Any]) -> str:
    name = event["event"]
    if name == "restore_progress":
        return _STEPS.get(event["step"], str(event["step"]))
    if name == "replay_progress":
        return f"cell {event['step']} of {event['of']}: {event['code']}"
    if name == "checkpoint_changed":
        captures = event["checkpoint"]["captures"]
        verified = any(c["kind"] == "namespace" and c.get("verified_at") for c in captures)
        return f"#{event['checkpoint']['number']} was verified" if verified else ""
    return ""
