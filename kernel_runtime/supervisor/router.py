"""Routing of Jupyter messages between the channels and the executor; owner of the request queue.

One shell request is in the executor's hands at a time; the others wait here, so that an executor
can be replaced without losing any. Comm messages that come while a cell runs are handed on at once,
as ipykernel does: an asynchronous cell may wait for a widget's answer.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from kernel_runtime.frames import Channel
from kernel_runtime.supervisor.channels import DELIM, Channels, Message
from kernel_runtime.supervisor.executors import Executor
from kernel_runtime.supervisor.output import StreamJoiner
from kernel_runtime.supervisor.request import Request
from kernel_runtime.supervisor.rest import Rest

_COMM_TYPES = frozenset({"comm_open", "comm_msg", "comm_close"})
_COMMS_REMEMBERED = 1000


class Router:
    """Moves messages; calls on_start() before the executor is given a request, on_done after."""

    def __init__(
        self,
        channels: Channels,
        on_start: Callable[[], None],
        on_done: Callable[[Request], None],
        rest: Rest,
    ) -> None:
        """rest: is told when nothing runs or waits."""
        self._rest = rest
        self._channels = channels
        self._on_start = on_start
        self._on_done = on_done
        self._queue: deque[Request] = deque()
        self._comms_in_flight: dict[str, Request] = {}
        self._holds: Counter[str] = Counter()
        self._doomed: list[Request] = []
        self._to_say: list[str] = []
        self._waiting_input: str | None = None
        self.in_flight: Request | None = None
        self.executor: Executor | None = None
        self.stand_in: Callable[[Request], None] | None = None
        """Answers requests while there is no executor."""
        self.page_comms: dict[str, str] = {}
        self.last_parent: dict[str, Any] = {}
        """Of the request in flight, or of the cell that ran last: what is said goes there."""
        self._last_cell: dict[str, Any] = {}
        self.joiner = StreamJoiner(self._publish_printed)

    # From clients

    def on_shell(self, identities: list[bytes], message: Message, frames: list[bytes]) -> None:
        """Queue a shell message."""
        request = Request(identities, message, frames)
        if request.type in _COMM_TYPES:
            self._note_comm(request.type, json.loads(frames[3]))
        self._queue.append(request)
        if self.in_flight is not None:
            self._hand_over_comms()
        self.dispatch()

    def on_stdin(self, identities: list[bytes], message: Message, frames: list[bytes]) -> None:
        """Hand on the answer to the prompt that waits; one that comes too late is dropped."""
        asked, self._waiting_input = self._waiting_input, None
        if asked is None or message["header"]["msg_type"] != "input_reply":
            return
        parent = message["parent_header"].get("msg_id")
        if parent and parent != asked and parent != (self.in_flight.id if self.in_flight else None):
            self._waiting_input = asked  # it answers an older prompt
            return
        if self.executor is not None:
            self.executor.link.send_message(Channel.STDIN, [*identities, DELIM, b"", *frames])

    # The queue

    def hold(self, reason: str) -> None:
        """Hand no request on until the same reason is released, as often as it was given."""
        self._rest.ends()
        self._holds[reason] += 1

    def release(self, reason: str) -> None:
        """Take one hold away."""
        self._holds[reason] -= 1
        self._holds += Counter()  # without those that are used up
        self.dispatch()

    @property
    def idle(self) -> bool:
        """Whether no request is in the executor's hands."""
        return self.in_flight is None

    @property
    def at_rest(self) -> bool:
        """Whether no request runs or waits, and nobody holds the queue."""
        return self.in_flight is None and not self._holds and not self._queue

    @property
    def is_awaited(self) -> bool:
        """Whether a request waits for its turn."""
        return bool(self._queue)

    def waiting(self) -> list[Request]:
        """The requests that wait for their turn, in order."""
        return list(self._queue)

    @property
    def current(self) -> Request | None:
        """What users see running: in the executor's hands, or there once a checkpoint is made."""
        if self.in_flight is not None or self._holds.keys() - {"checkpoint"}:
            return self.in_flight
        return next((r for r in self._queue if r.type == "execute_request"), None)

    def dispatch(self) -> None:
        """Hand on the next request if nothing stands in the way."""
        if self.at_rest:
            self._rest.begins()
        if self._holds or self.in_flight is not None or not self._queue:
            return
        if self.executor is None and self.stand_in is None:
            return
        self._rest.ends()
        request = self._queue.popleft()
        if request.type == "execute_request":
            request.content = json.loads(request.frames[3])
            if request.is_cell:
                for text in self._to_say:
                    self.say(f"time travel: {text}\n", request.message, "stderr")
                self._to_say.clear()
        self.in_flight = request
        self._on_start()
        if self.executor is None:
            assert self.stand_in is not None
            self.stand_in(request)
            return
        self._hand_over(request)
        self._hand_over_comms()

    def run_inner(self, request: Request) -> None:
        """Hand on a cell of the supervisor's own; the caller holds the queue."""
        assert request.inner is not None
        self.in_flight = request
        self._on_start()
        if self.executor is None:
            self.answer_in_flight(error=("ExecutorDied", "There is no process."))
        else:
            self._hand_over(request)

    def _hand_over_comms(self) -> None:
        """Let comm messages overtake cells that wait: the running one may wait for their answer."""
        if self.executor is None or self._holds:
            return
        for request in [r for r in self._queue if r.type in _COMM_TYPES]:
            self._queue.remove(request)
            self._comms_in_flight[request.id] = request
            self._hand_over(request)
        # ipykernel publishes no status for one that it handles within a running cell
        while len(self._comms_in_flight) > _COMMS_REMEMBERED:
            del self._comms_in_flight[next(iter(self._comms_in_flight))]

    def _hand_over(self, request: Request) -> None:
        assert self.executor is not None
        self.executor.requests += request.is_cell
        # signatures are the supervisor's: the executor's session has no key
        parts = [*request.identities, DELIM, b"", *request.frames]
        self.executor.link.send_message(Channel.SHELL, parts)

    def _doom_queue(self) -> None:
        """After an error: whatever waits now will be answered with ``aborted``.

        Called before the client can know of the error: what it sends afterwards is not meant.
        """
        self._channels.read("shell")
        self._doomed = [r for r in self._queue if r.type == "execute_request"]
        self._queue = deque(r for r in self._queue if r.type != "execute_request")

    def _abort_doomed(self) -> None:
        doomed, self._doomed = self._doomed, []
        for request in doomed:
            self.status("busy", request)
            self._channels.send(
                "shell",
                "execute_reply",
                {"status": "aborted"},
                request.message,
                request.identities,
                {"status": "aborted"},
            )
            self.status("idle", request)

    # From the executor

    def on_message(self, executor: Executor, channel: Channel, parts: list[bytes]) -> None:
        """Send on what the executor sends."""
        if executor is not self.executor:
            return
        self.joiner.flush()
        cut = parts.index(DELIM)
        identities, frames = parts[:cut], parts[cut + 2 :]
        header = json.loads(frames[0])
        rest = frames[1:]
        parent = json.loads(rest[0])
        if channel == Channel.IOPUB:
            self._on_iopub(identities, header, parent, rest)
        elif channel == Channel.SHELL:
            self._on_reply(identities, header, parent, rest)
        elif channel == Channel.STDIN:
            self._channels.forward("stdin", identities, header, rest)
            self._waiting_input = parent.get("msg_id") or "?"

    def _on_iopub(
        self, topic: list[bytes], header: dict[str, Any], parent: dict[str, Any], rest: list[bytes]
    ) -> None:
        msg_type = header["msg_type"]
        request = self._request_of(parent)
        if msg_type == "status":
            state = json.loads(rest[2])["execution_state"]
            if parent and request is None:
                return  # the end of a cell that was left, or of one in an abandoned branch
            if request is not None and state == "idle":
                self._finish(request, topic, header, rest)
                return
            if request is self.in_flight and request is not None:
                self.last_parent = parent
                if request.is_cell and request.inner is None:
                    self._last_cell = parent
                self._has_begun(request)
                if request.inner is not None:
                    return
        elif msg_type in _COMM_TYPES:
            self._note_comm(msg_type, json.loads(rest[2]))
        elif msg_type == "execute_input" and request is not None:
            request.input_published = json.loads(rest[2]).get("execution_count")
            if request.inner is not None:
                return
        elif msg_type == "execute_result" and request is not None:
            request.result = json.loads(rest[2]).get("data", {}).get("text/plain")
        elif msg_type == "error" and request is not None:
            failure = json.loads(rest[2])
            request.note_output(f"{failure.get('ename')}: {failure.get('evalue')}\n")
        self._channels.forward("iopub", topic, header, rest)

    @staticmethod
    def _has_begun(request: Request) -> None:
        request.begun = True
        then, request.when_begun = request.when_begun, None
        if then is not None:
            then()

    def _finish(
        self, request: Request, topic: list[bytes], header: dict[str, Any], rest: list[bytes]
    ) -> None:
        if request is not self.in_flight:
            del self._comms_in_flight[request.id]
            self._channels.forward("iopub", topic, header, rest)
            return
        self._waiting_input = None
        # no page shows what comes of a completion, or of what a front end runs for itself
        self.last_parent = self._last_cell
        if request.inner is not None:
            self.in_flight = None
        elif not request.leaving:
            self._channels.forward("iopub", topic, header, rest)
            self.in_flight = None
            self._abort_doomed()
        self._on_done(request)
        self.dispatch()

    @staticmethod
    def _stops_queue(request: Request) -> bool:
        return (
            request.is_cell
            and (request.reply or {}).get("status") == "error"
            and bool(request.content.get("stop_on_error", True))
        )

    def _on_reply(
        self,
        identities: list[bytes],
        header: dict[str, Any],
        parent: dict[str, Any],
        rest: list[bytes],
    ) -> None:
        request = self._request_of(parent)
        if request is None:
            return  # nobody waits for it: its cell belongs to another time
        if header["msg_type"] == "execute_reply":
            request.reply = json.loads(rest[2])
        if request.leaving or request.inner is not None:
            return
        request.replied = True
        if self._stops_queue(request):
            self._doom_queue()
        self._channels.forward("shell", identities, header, rest)

    def _request_of(self, parent: dict[str, Any]) -> Request | None:
        msg_id = parent.get("msg_id")
        if self.in_flight is not None and self.in_flight.id == msg_id:
            return self.in_flight
        return self._comms_in_flight.get(str(msg_id))

    def on_stream(self, name: str, parent: bytes, text: str) -> None:
        """Python code printed; parent is a header as JSON."""
        self.joiner.add(name, parent, text)

    def on_raw_output(self, name: str, text: str) -> None:
        """C code or a child wrote: it belongs to the cell that ran last."""
        self.joiner.add(name, json.dumps(self.last_parent).encode(), text)

    def _publish_printed(self, name: str, text: str, parent: dict[str, Any]) -> None:
        """Text of the executor's, joined; the cell that runs keeps the beginning of its own."""
        request = self._request_of(parent)
        if request is not None:
            request.note_output(text)
        self._publish_stream(name, text, parent)

    def _publish_stream(
        self, name: str, text: str, parent: Message | dict[str, Any] | None
    ) -> None:
        self._channels.send(
            "iopub", "stream", {"name": name, "text": text}, parent, [f"stream.{name}".encode()]
        )

    def _note_comm(self, msg_type: str, content: dict[str, Any]) -> None:
        comm_id = content.get("comm_id", "")
        if msg_type == "comm_open":
            self.page_comms[comm_id] = content.get("target_name", "")
        elif msg_type == "comm_close":
            self.page_comms.pop(comm_id, None)

    # Answers in the executor's place

    def status(self, state: str, request: Request | None) -> None:
        """Publish busy or idle for a request."""
        self.joiner.flush()
        parent = request.message if request else None
        self._channels.send("iopub", "status", {"execution_state": state}, parent)

    def say(self, text: str, parent: Message | dict[str, Any] | None, name: str = "stdout") -> None:
        """Publish text as output of a request."""
        self.joiner.flush()
        self._publish_stream(name, text, parent)

    def say_next(self, text: str) -> None:
        """Tell the user in the cell that runs next, or waits to run.

        Not in a silent one: that is a front end's own, which shows nobody what comes of it.
        """
        waiting = next((r for r in self._queue if r.has_cell), None)
        if waiting is not None:
            self.say(f"time travel: {text}\n", waiting.message, "stderr")
        else:
            self._to_say.append(text)

    def answer_in_flight(
        self,
        *,
        text: str = "",
        error: tuple[str, str] | None = None,
        content: dict[str, Any] | None = None,
    ) -> None:
        """End the request in flight: its output, its reply, its idle.

        For a cell that asked for a restore, or whose executor died or is not there. error: name
        and text. content: of the reply to what is not a cell.
        """
        request, self.in_flight = self.in_flight, None
        if request is None:
            return
        self._waiting_input = None
        if request.inner is not None:
            self._fail_inner(request, error or ("RuntimeError", "It was ended."))
            return
        count = request.input_published or (request.reply or {}).get("execution_count") or 0
        if text:
            self.say(text, request.message)
        reply: dict[str, Any] = {"status": "ok", "user_expressions": {}, "payload": []}
        if content is not None:
            reply = {"status": "ok", **content}
        if error is not None:
            name, value = error
            failure = {"ename": name, "evalue": value, "traceback": [f"{name}: {value}"]}
            self._channels.send("iopub", "error", failure, request.message)
            reply = {"status": "error", **failure}
        if request.type == "execute_request":
            reply["execution_count"] = count
        request.reply = reply
        if not request.replied and self._stops_queue(request):
            self._doom_queue()
        if not request.replied and request.type.endswith("_request"):
            self._channels.send(
                "shell",
                request.type.rpartition("_")[0] + "_reply",
                reply,
                request.message,
                request.identities,
                {"status": reply["status"]},
            )
        self.status("idle", request)
        self._abort_doomed()

    def _fail_inner(self, request: Request, error: tuple[str, str]) -> None:
        name, value = error
        failure = {"ename": name, "evalue": value, "traceback": [f"{name}: {value}"]}
        self.joiner.flush()
        self._channels.send("iopub", "error", failure, request.message)
        request.reply = {"status": "error", **failure}
        assert request.inner is not None
        request.inner.set_result(None)

    def replace_executor(self, executor: Executor | None) -> None:
        """Take up another executor; what the old one still says is not heard any more.

        Comm messages that it had not finished are answered by their busy and idle.
        """
        self.joiner.flush()
        self.executor = executor
        for request in self._comms_in_flight.values():
            self.status("idle", request)
        self._comms_in_flight.clear()
        self.last_parent = self._last_cell = {}

    def reconcile_comms(self, living: dict[str, str], parent: Message | None) -> list[str]:
        """Close on the page the comms that the new executor does not know.

        Returns the ids of those that live in it and that the page does not know.
        """
        for comm_id in [c for c in self.page_comms if c not in living]:
            del self.page_comms[comm_id]
            self._channels.send("iopub", "comm_close", {"comm_id": comm_id, "data": {}}, parent)
        return [c for c in living if c not in self.page_comms]
