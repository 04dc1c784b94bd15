"""The server: its tools over standard input and output, for one client."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, Final

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

from jupyter_timetravel.agent_server.answers import answered, refusal
from jupyter_timetravel.agent_server.grouping import GroupTools
from jupyter_timetravel.agent_server.kernels import Kernels
from jupyter_timetravel.agent_server.tools import Tools
from kernel_runtime.errors import BadRequest

INSTRUCTIONS: Final = """\
Notebook kernels that can go back in time: memory, threads, the notebook's folder and installed \
packages. Every call names its notebook (a path) or its kernel; there is no current one. A \
checkpoint is made after every cell by itself: run_cell says its number, restore goes back to it. \
Before something risky, look with restore(dry_run=true) or try_alternatives; after a mistake \
(a wrong pip install, deleted files, a damaged variable) restore the number from before it, and \
restore(undo=true) takes that back. What went over the network or ran outside is not undone: \
results name it as effects."""

_LOOKS: Final = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_ADDS: Final = ToolAnnotations(destructive_hint=False, open_world_hint=False)
_CHANGES: Final = ToolAnnotations(destructive_hint=True, open_world_hint=False)
_RUNS: Final = ToolAnnotations(destructive_hint=True, open_world_hint=True)


class Server(MCPServer[None]):
    """Refuses arguments that a tool does not have. The SDK leaves them out: a ``restore`` with
    ``dryrun`` or ``paths`` would be one of everything, for real."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.taken: dict[str, list[str]] = {}
        """By tool: the names of its arguments."""

    async def call_tool(self, name: str, arguments: dict[str, Any], *rest: Any, **more: Any) -> Any:
        """Do it, or say which argument it has not."""
        taken = self.taken.get(name)
        unknown = [] if taken is None else sorted(set(arguments) - set(taken))
        if taken is not None and unknown:
            names = ", ".join(map(repr, unknown))
            words = f"{name} has no argument {names}; it has {', '.join(taken)}. Nothing was done."
            return refusal(name, BadRequest(words))
        return await super().call_tool(name, arguments, *rest, **more)


def build(kernel_name: str, writes: bool) -> Server:
    """The server, with its tools; the kernels that it starts end when its run does."""
    kernels = Kernels(kernel_name)
    tools, grouping = Tools(kernels, writes), GroupTools()

    @asynccontextmanager
    async def life(_: MCPServer[None]) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await kernels.close()

    server = Server(
        "jupyter-timetravel",
        title="Session time travel for Jupyter",
        instructions=INSTRUCTIONS,
        version=version("jupyter_timetravel"),
        lifespan=life,
        log_level="WARNING",
    )
    for kind, some in (
        (_LOOKS, (tools.kernels, tools.status, tools.list_checkpoints, tools.show_checkpoint)),
        (_LOOKS, (tools.diff, tools.wait_for_cell, grouping.group_show)),
        (_ADDS, (tools.start_kernel, tools.checkpoint)),
        (_ADDS, (grouping.group_create, grouping.group_checkpoint)),
        (_CHANGES, (grouping.group_restore,)),
        (_CHANGES, (tools.restore, tools.resume, tools.interrupt, tools.shutdown_kernel)),
        (_RUNS, (tools.run_cell, tools.replay, tools.try_alternatives)),
    ):
        for tool in some:
            server.add_tool(answered(tool), annotations=kind)
            server.taken[tool.__name__] = list(inspect.signature(tool).parameters)
    return server


def serve(kernel_name: str, writes: bool) -> None:
    """Serve one client on standard input and output, until it goes."""
    build(kernel_name, writes).run("stdio")
