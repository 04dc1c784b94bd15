"""The tools. Each names its notebook or kernel; results are those of docs/protocol.md."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, Final, Literal, TypeVar

import anyio
from pydantic import Field

from jupyter_timetravel import commands, render
from jupyter_timetravel.access import choosing, running
from jupyter_timetravel.access.session import Access
from jupyter_timetravel.agent_server import cells
from jupyter_timetravel.agent_server.alternatives import Alternatives, Keep, run_cell, told_of
from jupyter_timetravel.agent_server.answers import Told
from jupyter_timetravel.agent_server.cells import Cell
from jupyter_timetravel.agent_server.kernels import Kernel, Kernels
from jupyter_timetravel.client import DEFAULT_TIMEOUT_S
from jupyter_timetravel.commands import Command
from jupyter_timetravel.offline.stored import NotRunning
from jupyter_timetravel.records import Result
from kernel_runtime.errors import BadRequest
from kernel_runtime.supervisor.restore_request import RestoreRequest
from kernel_runtime.timeline.report import diff_text, title
from kernel_runtime.timeline.text import plural

T = TypeVar("T")

WAIT_S: Final = 60.0
LONG_S: Final = 600.0
LIST_MOST: Final = 30

Notebook = Annotated[
    str,
    Field(
        description="Absolute path of the notebook, or the id or connection file of a running "
        "kernel. Needed in every call."
    ),
]
Checkpoint = Annotated[
    int | str,
    Field(description="Number, label, comment or id; -1 is where the session is, -2 before that"),
]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class Tools:
    """The tools, over the kernels of one server."""

    def __init__(self, kernels: Kernels, writes: bool) -> None:
        """writes: append cells to the notebook's file, unless a call says otherwise."""
        self._kernels = kernels
        self._writes = writes

    # -- kernels ------------------------------------------------------------------------------

    async def kernels(self) -> Told:
        """List the running kernels that have time travel, the newest first."""
        found = [one.record() for one in await anyio.to_thread.run_sync(running.survey)]
        lines = [
            f"{one['notebook'] or '(no notebook)'}  kernel {one['id']}, at #{one['head']}"
            + (", busy" if one["busy"] else "")
            for one in found
        ]
        return Told("\n".join(lines) or "no kernels", {"kernels": found})

    async def start_kernel(
        self,
        notebook: Notebook,
        create: Annotated[
            bool, Field(description="Make an empty notebook where there is none")
        ] = False,
    ) -> Told:
        """Start a time-travel kernel for a notebook, or find the one that runs for it already.

        A kernel that this server starts ends with it; its checkpoints stay. After a start the
        memory is fresh and the files are as they were: resume goes on with an earlier session.
        """
        kernel = await self._kernels.of(notebook, start=True, create=create)
        ours = kernel.manager is not None
        text = f"{kernel.found.title}: kernel {kernel.found.id}" + (
            ", ends with this server" if ours else ", started by another program"
        )
        return Told(text, {"kernel": kernel.found.record(), "ends_with_server": ours})

    async def shutdown_kernel(self, notebook: Notebook) -> Told:
        """End a kernel that this server started. Its checkpoints and files stay."""
        kernel = await self._kernels.of(notebook)
        await self._kernels.shut_down(kernel)
        return Told(f"the kernel of {kernel.found.title} has ended", {"kernel": kernel.found.id})

    async def status(self, notebook: Notebook) -> Told:
        """Say where the session stands: its checkpoint, whether a cell runs, limits, settings."""
        async with self._session(notebook) as look:
            result = await look(lambda access: access.ask(commands.status()))
        return Told(render.status_text(result), result)

    # -- cells --------------------------------------------------------------------------------

    async def run_cell(
        self,
        notebook: Notebook,
        code: Annotated[str, Field(description="Python, magics and shell lines included")],
        timeout_s: Seconds = WAIT_S,
        write: Annotated[
            bool | None,
            Field(
                description="Append the cell and its outputs to the notebook's file when it has "
                "ended; left out: as the server was started"
            ),
        ] = None,
    ) -> Told:
        """Run a cell, and give its output and the number of the checkpoint after it.

        Starts a kernel if the notebook has none. A time limit never interrupts: after timeout_s
        the answer is state "running" with the output so far, the cell goes on, and
        wait_for_cell gives the rest (interrupt stops it). Until a cell has ended the next one is
        not sent: a call waits for it within its own limit, and is refused with KernelBusy
        after that. The cell is kept in the timeline. With write it is appended to the notebook's
        file too, unless somebody may have the notebook open: "notebook_file" says which.
        """
        deadline = time.monotonic() + timeout_s
        kernel = await self._kernels.of(notebook, start=True)
        async with kernel.turn(deadline):
            cell, record = await run_cell(kernel, code, deadline - time.monotonic())
            cell.writes = self._writes if write is None else write
            return await _told(kernel, cell, record)

    async def wait_for_cell(
        self,
        notebook: Notebook,
        cell: Annotated[str, Field(description="As run_cell has named it")],
        timeout_s: Seconds = WAIT_S,
    ) -> Told:
        """Wait for a cell that outlasted its time limit, and give all of its output so far."""
        kernel = await self._kernels.of(notebook)
        found = kernel.cell(cell)
        await kernel.wait(found, timeout_s)
        return await _told(kernel, found, await told_of(kernel, found))

    async def interrupt(self, notebook: Notebook) -> Told:
        """Interrupt the cell that runs, as the button in a notebook does."""
        kernel = await self._kernels.of(notebook)
        await kernel.interrupt()
        return Told("interrupted", {"kernel": kernel.found.id})

    # -- looking ------------------------------------------------------------------------------

    async def list_checkpoints(
        self,
        notebook: Notebook,
        limit: Annotated[int, Field(ge=1, description="The newest so many")] = LIST_MOST,
        manual_only: Annotated[bool, Field(description="Only those that were asked for")] = False,
    ) -> Told:
        """List the checkpoints of a notebook, oldest first, whether its kernel runs or not.

        "parent" makes them a tree: going back and running on begins a branch. "head" is the id of
        the one that the session is at.
        """
        async with self._session(notebook) as look:
            result = await look(
                lambda access: {
                    **access.about(),
                    **access.ask(commands.list_checkpoints(not manual_only)),
                }
            )
        older = max(0, len(result["checkpoints"]) - limit)
        shown = {**result, "checkpoints": result["checkpoints"][older:], "older": older}
        text = render.table_text(shown)
        if older:
            text = f"… {plural(older, 'older checkpoint')}: give a higher limit\n{text}"
        return Told(text, shown)

    async def show_checkpoint(self, notebook: Notebook, checkpoint: Checkpoint) -> Told:
        """Say what a checkpoint holds (variables, cells, files) and what it does not."""
        async with self._session(notebook) as look:
            result = await look(lambda access: access.ask(commands.get(checkpoint)))
        return Told(render.details_text(result), result)

    async def diff(
        self,
        notebook: Notebook,
        a: Checkpoint,
        b: Annotated[int | str | None, Field(description="Likewise; left out: the present")] = None,
    ) -> Told:
        """Say what happened to variables, files and packages from one checkpoint to another."""
        given = [a] if b is None else [a, b]

        def compared(access: Access) -> tuple[Result, list[str]]:
            names = [title(access.ask(commands.get(one))["checkpoint"]) for one in given]
            return access.ask(commands.diff(*given)), names

        async with self._session(notebook) as look:
            result, names = await look(compared)
        return Told(diff_text(names[0], names[1] if b is not None else "now", result), result)

    # -- going back ---------------------------------------------------------------------------

    async def checkpoint(
        self,
        notebook: Notebook,
        comment: Annotated[str, Field(description="What this state is")] = "",
        label: Annotated[str | None, Field(description="A name to restore it by")] = None,
        pin: Annotated[bool, Field(description="Never evict or delete it")] = False,
        timeout_s: Seconds = WAIT_S,
    ) -> Told:
        """Keep the present state under a name. (Every cell is kept without this, by its number.)

        Never of the middle of a cell: waits for the one that runs, at most timeout_s, and is
        refused with KernelBusy after that; then no checkpoint is made later either.
        """
        kernel = await self._kernels.of(notebook)
        async with kernel.turn(time.monotonic() + timeout_s):
            result = await kernel.ask(commands.checkpoint(comment, label, pin))
        text = render.checkpoint_text(result["checkpoint"], result["pause_ms"], result["problem"])
        return Told(text, result)

    async def restore(
        self,
        notebook: Notebook,
        checkpoint: Annotated[
            int | str | None, Field(description="Number, label, comment or id; -2: before now")
        ] = None,
        dry_run: Annotated[bool, Field(description="Only say what it would change")] = False,
        only: Annotated[
            Literal["process", "files"] | None, Field(description="Leave the other part as it is")
        ] = None,
        variables: Annotated[
            list[str] | None,
            Field(description="Bring these variables into the present, leave all else as it is"),
        ] = None,
        undo: Annotated[
            bool, Field(description="Without checkpoint: go back to before the last restore")
        ] = False,
        force: Annotated[
            bool, Field(description="End a running cell that cannot be interrupted")
        ] = False,
    ) -> Told:
        """Go back to a checkpoint of this notebook: memory, threads, files and packages.

        Nothing is lost: a safety checkpoint of the present is made first, and undo=true goes back
        to it. A cell that runs is interrupted. Effects that no rollback undoes (network,
        programs) are named in "effects". Without a running kernel the files go back and the
        next kernel starts there.
        """
        if (checkpoint is None) != undo:
            raise BadRequest("Name a checkpoint, or say undo=true. Nothing was done.")
        target = -1 if checkpoint is None else checkpoint

        if variables is not None and (undo or only or dry_run or force):
            raise BadRequest("variables go with a checkpoint alone. Nothing was done.")
        asked = RestoreRequest(target, only, dry_run, undo, force)
        command: Command[Any] = commands.restore(asked)
        if variables is not None:
            command = commands.bring(target, variables)
        async with self._session(notebook, LONG_S) as look:
            result = await look(lambda access: access.ask(command))
        text = result["text"]
        if not dry_run and result.get("safety"):
            text += f"\n(restore with undo=true takes this back, to #{result['safety']['number']})"
        return Told(text, result)

    async def resume(self, notebook: Notebook) -> Told:
        """Go on with the memory of the session before this kernel; files stay as they are."""
        kernel = await self._kernels.of(notebook, start=True)
        async with kernel.turn(time.monotonic() + WAIT_S):
            result = await kernel.ask(commands.resume(), LONG_S)
        return Told(result["text"], result)

    async def replay(
        self,
        notebook: Notebook,
        checkpoint: Checkpoint,
        skip: Annotated[
            list[int | str] | None,
            Field(description='Checkpoints whose cells are left out, also ranges such as "15-17"'),
        ] = None,
        until: Annotated[
            int | str | None, Field(description="The last one; left out: the present")
        ] = None,
        stop_on_difference: Annotated[
            bool, Field(description="Stop after the first cell that comes out differently")
        ] = False,
        dry_run: Annotated[bool, Field(description="Only say which cells it would run")] = False,
        confirm: Annotated[
            bool, Field(description='Needed where "external_effects" would happen again')
        ] = False,
        timeout_s: Seconds = LONG_S,
    ) -> Told:
        """Go back to a checkpoint and run the cells that had run after it again, in order.

        Running again repeats what these cells did outside (requests, mail, programs). If any is
        known, nothing is run without confirm=true: the answer has needs_confirmation and lists
        external_effects.
        """
        which = (checkpoint, skip or (), until, stop_on_difference)
        kernel = await self._kernels.of(notebook)
        async with kernel.turn(time.monotonic() + timeout_s):
            result = await kernel.ask(commands.replay(*which, dry_run=True))
            effects = [f"{one['cell']} {one['text']}" for one in result["effects"]]
            asks = bool(effects) and not confirm and not dry_run
            if not dry_run and not asks:
                result = await kernel.ask(commands.replay(*which), timeout_s)
        more = {"needs_confirmation": asks, "external_effects": effects}
        text = result["text"]
        if asks:
            text += "\nAsk whoever is responsible, then call again with confirm=true."
        return Told(text, {**result, **more})

    async def try_alternatives(
        self,
        notebook: Notebook,
        alternatives: Annotated[
            list[str], Field(description="Code of each; each runs from the same state")
        ],
        checkpoint: Annotated[
            int | str | None, Field(description="Where each begins; left out: the present")
        ] = None,
        keep: Annotated[
            Keep | int,
            Field(
                description='Which one the session goes on with: "none" (back to the beginning), '
                '"first_ok", "highest" or "lowest" score, or its number, from 1'
            ),
        ] = "none",
        score: Annotated[
            str | None,
            Field(description="A Python expression, worked out after each: a number to compare"),
        ] = None,
        timeout_s: Seconds = WAIT_S,
    ) -> Told:
        """Run several cells as alternatives from one checkpoint, and keep one or none.

        Each starts from the same memory, files and packages; of each the output, what it changed
        and the number of its checkpoint are told, so restore can keep another one later. An
        alternative that does not end within timeout_s is interrupted, and taken back like the
        others. Effects outside (network, programs) are not taken back.
        """
        deadline = time.monotonic() + timeout_s
        kernel = await self._kernels.of(notebook, start=True)
        trial = Alternatives(kernel, alternatives, keep, score, timeout_s)
        async with kernel.turn(deadline):
            result = await trial.run(checkpoint)
        lines = []
        for one in result["alternatives"]:
            scored = "" if one["score"] is None else f", score {one['score']:g}"
            lines.append(f"── alternative {one['number']}{scored}\n{cells.told(one)}")
            lines += [text for text in (one["score_problem"], one["changes"]) if text]
        kept = result["kept"]
        lines.append(
            f"none is kept; the session is at #{result['head']}"
            if kept is None
            else f"alternative {kept} is kept; the session is at #{result['head']}"
        )
        return Told("\n".join(lines), result)

    # -- inside -------------------------------------------------------------------------------

    @asynccontextmanager
    async def _session(
        self, notebook: str, timeout: float = DEFAULT_TIMEOUT_S
    ) -> AsyncIterator[Callable[[Callable[[Access], T]], Awaitable[T]]]:
        """What a notebook names, whether its kernel runs or not."""
        kernel: Kernel | None = None
        with suppress(NotRunning):
            kernel = await self._kernels.of(notebook)

        async def look(work: Callable[[Access], T]) -> T:
            if kernel is not None:
                if kernel.trying and timeout == LONG_S:
                    raise kernel.busy()
                return await kernel.look(work, timeout)

            def stored() -> T:
                with choosing.opened(notebook) as access:
                    return work(access)

            return await anyio.to_thread.run_sync(stored)

        yield look


async def _told(kernel: Kernel, cell: Cell, record: dict[str, Any]) -> Told:
    if cell.writes:
        await kernel.write(cell)
    record = {**record, "notebook_file": cell.file}
    return Told(cells.told(record), record, cell.images)
