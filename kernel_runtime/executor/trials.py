"""``%%dryrun`` and ``%%transaction``: cells that are taken back, always or when they fail.

The kernel takes the first line away and runs the rest as the cell, so whatever a cell may hold
(``await``, other magics, a result to show) works as without it. The checkpoint before and the
restore afterwards are the supervisor's; the cell's own reply is held back until then.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from kernel_runtime import errors
from kernel_runtime.executor.signals import LeaveCell
from kernel_runtime.later import dataclass

if TYPE_CHECKING:
    from kernel_runtime.executor.kernel import ExecutorKernel

_FIRST_LINE: Final = re.compile(r"\s*%%(dryrun|transaction)(?:[ \t]+([^\n]*))?[ \t]*(?:\n|\Z)")
_HELP: Final = ("-h", "--help")
_SAID: Final = {
    "dryrun": "%%dryrun: the cell changed",
    "transaction": "%%transaction: the cell failed, after it had changed",
}

Reply = dict[str, Any]


def read(code: str) -> Trial | None:
    """What the first line of a cell asks for, or None."""
    found = _FIRST_LINE.match(code)
    if found is None or (found[2] or "").strip() in _HELP:
        return None
    comment = (found[2] or "").strip()
    if len(comment) > 1 and comment[0] == comment[-1] and comment[0] in "\"'":
        comment = comment[1:-1]
    return Trial(found[1], comment.strip() or f"before %%{found[1]}", code)


@dataclass(frozen=True)
class Trial:
    """One such cell."""

    kind: str
    comment: str
    code: str

    async def run(self, kernel: ExecutorKernel, execute: Callable[[], Awaitable[Reply]]) -> Reply:
        """Run the cell and return its reply. execute runs what the shell makes of the code."""
        timetravel = kernel.timetravel
        try:
            before = timetravel.request("trial", {"comment": self.comment})
        except LeaveCell:
            # a process woken from that checkpoint: nobody waits for this cell any more
            return _no_reply(kernel)
        except errors.TimeTravelError as error:
            return _refused(kernel, error)
        for text in before["warnings"]:
            print(f"%%{self.kind}: {text}", file=sys.stderr)
        with self._without_first_line(kernel):
            reply = await execute()
        if reply.get("ename") == LeaveCell.__name__:
            return reply  # it has asked for a restore itself
        if self.kind == "transaction" and reply["status"] == "ok":
            return reply
        try:
            timetravel.request(
                "roll_back", {"checkpoint": before["checkpoint"], "what": _SAID[self.kind]}
            )
        except LeaveCell:
            return reply
        except errors.TimeTravelError as error:
            return _refused(kernel, error)
        return reply

    @contextlib.contextmanager
    def _without_first_line(self, kernel: ExecutorKernel) -> Iterator[None]:
        """Let the shell see this very cell, and no other, without its first line."""
        assert kernel.shell is not None
        transforms = kernel.shell.input_transformer_manager.line_transforms
        whole = "".join(self.code.split())

        def strip(lines: list[str]) -> list[str]:
            if not lines or not _FIRST_LINE.match(lines[0]):
                return lines
            if "".join("".join(lines).split()) != whole:
                return lines
            rest = lines[1:]
            first = next((n for n, line in enumerate(rest) if line.strip()), 0)
            if rest and rest[first].startswith("%%"):
                return rest[first:]
            return ["\n", *rest]  # so that the lines keep their numbers

        transforms.insert(0, strip)
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):
                transforms.remove(strip)


def _no_reply(kernel: ExecutorKernel) -> Reply:
    return {
        "status": "aborted",
        "execution_count": kernel.execution_count,
        "user_expressions": {},
        "payload": [],
    }


def _refused(kernel: ExecutorKernel, error: errors.TimeTravelError) -> Reply:
    """Show an error of ours in one line, and answer the cell with it."""
    name, text = type(error).__name__, str(error)
    content = {"ename": name, "evalue": text, "traceback": [f"{name}: {text}"]}
    kernel.send_response(kernel.iopub_socket, "error", content)  # type: ignore[no-untyped-call]
    return {**_no_reply(kernel), "status": "error", **content}
