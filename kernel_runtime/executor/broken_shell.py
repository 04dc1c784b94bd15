"""A shell that a cell has broken (``sys.stdout = None``): its cells are answered all the same.

ipykernel sends no reply when its own code around a cell fails, and clients wait for ever. Here the
cell fails with the reason, and one that is nothing but a time-travel line is carried out: it needs
neither the shell's way of running cells nor Python's own output.
"""

from __future__ import annotations

import re
import traceback
from typing import TYPE_CHECKING, Any, Final

from kernel_runtime.executor.signals import LeaveCell

if TYPE_CHECKING:
    from kernel_runtime.executor.kernel import ExecutorKernel

_LINE: Final = re.compile(r"\s*%(restore|checkpoint|timeline|timetravel)\b([^\n]*)\s*\Z")
_WAY_OUT: Final = (
    "Something around this cell failed, not the cell's own code: an earlier cell has broken what "
    "runs cells. %restore N goes back to a checkpoint from before it; %timeline lists them.\n"
)


def answer(kernel: ExecutorKernel, request: dict[str, Any], error: Exception) -> dict[str, Any]:
    """The content of the reply to a cell around which the shell has failed with ``error``.

    Called in the handler of ``error``. A cell of the user's own code is not run a second time.
    """
    content = request["content"]
    line = None if kernel.code_ran else _LINE.match(content["code"])
    failure: Exception | None = error
    if line is not None:
        try:
            assert kernel.shell is not None
            kernel.shell.run_line_magic(line[1], line[2].strip())
            failure = None
        except LeaveCell:
            failure = None
        except Exception as refused:
            failure = refused
    reply: dict[str, Any] = {
        "status": "ok",
        "execution_count": kernel.execution_count - 1,
        "user_expressions": {},
        "payload": [],
    }
    if failure is None:
        return reply
    told = {
        "ename": type(failure).__name__,
        "evalue": str(failure),
        "traceback": [*traceback.format_exception(failure), _WAY_OUT],
    }
    if not content.get("silent", False):
        kernel.send_response(kernel.iopub_socket, "error", told)  # type: ignore[no-untyped-call]
    return {**reply, "status": "error", **told}
