"""One cell that was sent to a kernel, and what came of it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, Final

import anyio

from kernel_runtime.timeline import new_id

Message = Mapping[str, Any]

TEXT_MOST: Final = 20_000
"""Characters of a stream, a result or a traceback that an answer holds."""
DISPLAYS_MOST: Final = 20

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_IMAGES: Final = ("image/png", "image/jpeg")


class Cell:
    """Collects the messages of one execute request."""

    def __init__(self, id: str, code: str) -> None:
        self.id = id
        self.cell_id = new_id()
        """In the timeline, and in a notebook."""
        self.outputs: list[dict[str, Any]] = []
        """As a notebook has them."""
        self.writes = False
        """Whether it is to be appended to the notebook's file."""
        self.file: str | None = None
        """What became of that, once it was tried."""
        self.code = code
        self.sent_at = time.monotonic()
        self.took_s: float | None = None
        self.reply: Message | None = None
        self.images: list[tuple[str, str]] = []
        """Type and base64 of each."""
        self._clears = False
        self._idle = False
        self._ended = anyio.Event()
        self._streams = {"stdout": "", "stderr": ""}
        self._result: str | None = None
        self._displays: list[dict[str, Any]] = []
        self._error: dict[str, Any] | None = None

    @property
    def ended(self) -> bool:
        """Whether the kernel has said that it did, and has sent all of its output."""
        return self._ended.is_set()

    async def wait(self, seconds: float) -> bool:
        """Wait for its end; whether it came."""
        with anyio.move_on_after(max(0.0, seconds)):
            await self._ended.wait()
        return self.ended

    def on_output(self, message: Message) -> None:
        """A message on IOPub."""
        kind, content = message["header"]["msg_type"], message["content"]
        self._clears = _collect(self.outputs, kind, content, self._clears)
        if kind == "stream":
            name = str(content["name"])
            self._streams[name] = self._streams.get(name, "") + str(content["text"])
        elif kind in ("display_data", "execute_result"):
            self._on_data(kind, content["data"])
        elif kind == "error":
            self._error = {
                "ename": content["ename"],
                "evalue": content["evalue"],
                "traceback": _COLOUR.sub("", "\n".join(content["traceback"])),
            }
        elif kind == "clear_output":
            self._streams = {"stdout": "", "stderr": ""}
            self._displays.clear()
            self.images.clear()
        elif kind == "status" and content["execution_state"] == "idle":
            self._idle = True
            self._check()

    def on_reply(self, content: Message) -> None:
        """Its execute_reply."""
        self.reply = content
        self._check()

    def record(self) -> dict[str, Any]:
        """What is known of it by now."""
        reply = self.reply or {}
        error = self._error
        if error is None and reply.get("status") == "error":
            error = {"ename": reply.get("ename"), "evalue": reply.get("evalue"), "traceback": ""}
        return {
            "cell": self.id,
            "state": "finished" if self.ended else "running",
            "outcome": str(reply["status"]) if self.ended else None,
            "execution_count": reply.get("execution_count"),
            "stdout": clipped(self._streams["stdout"]),
            "stderr": clipped(self._streams["stderr"]),
            "result": None if self._result is None else clipped(self._result),
            "displays": self._displays[:DISPLAYS_MOST],
            "error": error and {**error, "traceback": clipped(error["traceback"])},
            "took_s": round(self.took_s or time.monotonic() - self.sent_at, 3),
        }

    def _on_data(self, kind: str, data: Mapping[str, Any]) -> None:
        text = str(data.get("text/plain", ""))
        if kind == "execute_result":
            self._result = text
        else:
            self._displays.append({"types": sorted(data), "text": clipped(text)})
        self.images += [(kind, str(data[kind])) for kind in _IMAGES if kind in data]

    def _check(self) -> None:
        if self._idle and self.reply is not None and not self.ended:
            self.took_s = time.monotonic() - self.sent_at
            self._ended.set()


def _collect(outputs: list[dict[str, Any]], kind: str, content: Message, clears: bool) -> bool:
    """Take an output into those of a notebook's cell; whether the next one clears them."""
    if kind == "clear_output":
        if not content.get("wait"):
            outputs.clear()
        return bool(content.get("wait"))
    if kind == "update_display_data":
        shown = content.get("transient", {}).get("display_id")
        for one in outputs:
            if shown is not None and one.get("transient", {}).get("display_id") == shown:
                one.update(data=content["data"], metadata=content["metadata"])
        return clears
    if kind not in ("stream", "display_data", "execute_result", "error"):
        return clears
    if clears:
        outputs.clear()
    last = outputs[-1] if outputs else {}
    if kind == "stream" and last.get("name") == content["name"]:
        last["text"] += content["text"]
    else:
        outputs.append({"output_type": kind, **content})
    return False


def clipped(text: str) -> str:
    """At most TEXT_MOST characters: the beginning and the end, with what is left out said."""
    left_out = len(text) - TEXT_MOST
    if left_out <= 0:
        return text
    half = TEXT_MOST // 2
    return f"{text[:half]}\n… {left_out:,} characters left out …\n{text[-half:]}"


def told(record: Mapping[str, Any]) -> str:
    """A cell in words, as a notebook would show it."""
    lines = [record["stdout"].rstrip("\n"), record["stderr"].rstrip("\n")]
    lines += [one["text"] for one in record["displays"]]
    if record["result"] is not None:
        lines.append(record["result"])
    error = record["error"]
    if error is not None:
        lines.append(error["traceback"] or f"{error['ename']}: {error['evalue']}")
    if record["state"] == "running":
        lines.append(
            f"(the cell still runs after {record['took_s']:.0f} s; it was not interrupted. "
            f"wait_for_cell with cell {record['cell']} gives the rest, interrupt stops it)"
        )
    elif record.get("checkpoint") is not None:
        lines.append(f"({record['outcome']}; checkpoint #{record['checkpoint']})")
    else:
        lines.append(f"({record['outcome']})")
    if record.get("notebook_file"):
        lines.append(f"({record['notebook_file']})")
    return "\n".join(line for line in lines if line)
