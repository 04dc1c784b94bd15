"""The kernel without an executor, when what a cell did to its own Python keeps a new one from
starting.

The supervisor runs from the host's files, so it can always go on: it serves the channels itself.
Clients see a Python kernel whose cells fail with the reason and the way back. Cells that go back
(%restore, %timetravel reset) are carried out here; after them the kernel is an ordinary one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kernel_runtime.engines.workspace.errors import WorkspaceError
from kernel_runtime.errors import (
    BadRequest,
    EnvironmentRefused,
    RestoreRefused,
    SandboxError,
    TimeTravelError,
)
from kernel_runtime.supervisor.commands import Commands
from kernel_runtime.supervisor.events import VERSION
from kernel_runtime.supervisor.last_words import StartFailure
from kernel_runtime.supervisor.request import Request
from kernel_runtime.supervisor.rescue_restores import (
    RefusedCommands,
    RescueCommands,
    RescueRestorer,
)
from kernel_runtime.supervisor.restore_request import RestoreRequest
from kernel_runtime.supervisor.restores import Restorer
from kernel_runtime.timeline.model import Checkpoint
from kernel_runtime.timeline.text import one_line

if TYPE_CHECKING:
    from kernel_runtime.engines.overlay.engine import OverlayEngine
    from kernel_runtime.supervisor.session import Session

ERROR_NAME: Final = "KernelBroken"
"""``ename`` of the replies to cells that cannot run."""

_SHOWN: Final = 40
_LOOKED_AT: Final = 200
_MAGIC: Final = re.compile(r"\s*%(restore|timeline|timetravel)\b(.*)")
_CONTENT: Final[dict[str, dict[str, Any]]] = {
    "is_complete_request": {"status": "complete"},
    "complete_request": {"matches": [], "cursor_start": 0, "cursor_end": 0, "metadata": {}},
    "inspect_request": {"found": False, "data": {}, "metadata": {}},
    "history_request": {"history": []},
}


class Rescue:
    """Serves one session's channels while it has no executor."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._failure = StartFailure("")
        self._refused = ""
        self._suggested: Checkpoint | None = None
        self._replaced: tuple[Restorer, Commands] | None = None
        self._count = 0

    # Coming and going

    @property
    def active(self) -> bool:
        """Whether the kernel has no executor, and will not get one by itself."""
        return bool(self._failure.text or self._refused)

    def can_help(self) -> bool:
        """Whether there is anything to go back to: something that was written over the host's
        files, or files of the workspace that a checkpoint holds."""
        engine = self._session.environment.engine
        if engine is not None and any(engine.state.stacks.values()):
            return True
        return self._session.files.enabled and any(
            capture is not None and capture.state == "ready"
            for checkpoint in self._session.timeline
            if (capture := checkpoint.capture("filesystem", engine="workspace"))
        )

    async def enter(self, failure: StartFailure) -> None:
        """Serve from now on. Called again when another attempt has failed."""
        session = self._session
        session.log.error(failure.text)
        with contextlib.suppress(SandboxError):
            await session.restores.stop_processes()
        self._take_over()
        if self._replaced is None:
            self._replaced = session.restores, session.commands
            session.restores = RescueRestorer(session)
            session.commands = RescueCommands(session)
        session.limits[:] = [text for text in session.limits if text != self._failure.text]
        session.limits.append(failure.text)
        self._failure = failure
        self._suggested = await self._suggestion()

    def refuse(self, why: str) -> None:
        """Answer every cell with why this kernel does not run any."""
        self._session.log.critical("The time-travel kernel does not start: %s", why)
        self._refused = why
        self._session.commands = RefusedCommands(self._session, why)
        self._take_over()

    def leave(self) -> None:
        """There is an executor again."""
        session = self._session
        if self._replaced is None:
            return
        (session.restores, session.commands), self._replaced = self._replaced, None
        session.router.stand_in = None
        session.limits[:] = [text for text in session.limits if text != self._failure.text]
        self._failure = StartFailure("")

    def _take_over(self) -> None:
        session = self._session
        session.executor = None
        session.router.replace_executor(None)
        session.router.stand_in = self._answer
        session.know_kernel(_kernel_info())

    # What clients are told

    def text(self) -> str:
        """What is broken, and what can be done."""
        if self._refused:
            return self._refused
        found = self._suggested
        told = [self._failure.text]
        if found is not None:
            code = f", as after `{one_line(found.code, 60)}`" if found.code else ""
            told.append(
                f"`%restore {found.number}` in a cell of its own brings the files back as they were"
                f" at checkpoint #{found.number}{code}, and starts Python again."
            )
        elif len(self._session.timeline):
            told.append(
                "If a cell broke it, `%restore N` in a cell of its own brings the files of a "
                "checkpoint back; else mend it from a terminal and restart the kernel."
            )
        if self._session.environment.enabled:
            told.append(
                "`%timetravel reset` goes back to this machine's own files outside of the "
                "workspace. Either can be undone."
            )
        told.append("`%timeline` shows the checkpoints. No other cell runs until then.")
        return " ".join(told)

    async def _suggestion(self) -> Checkpoint | None:
        """The newest checkpoint of this branch at which a file that failed was another one, else
        the newest whose environment is not the present one."""
        branch = self._session.timeline.present_branch()[-_LOOKED_AT:]
        found, other = await asyncio.to_thread(self._by_environment, branch)
        return found or await self._by_workspace(branch) or other

    def _by_environment(
        self, branch: Sequence[Checkpoint]
    ) -> tuple[Checkpoint | None, Checkpoint | None]:
        session = self._session
        engine = session.environment.engine
        if engine is None:
            return None, None
        other: Checkpoint | None = None
        present = _places(engine, engine.present(), self._failure.files)
        for checkpoint in reversed(branch):
            capture = checkpoint.capture("filesystem", engine="overlay")
            if capture is None or capture.state != "ready" or session.environment.is_at(capture):
                continue
            stacks = capture.details.get("stacks", {})
            if engine.missing(stacks, ""):
                continue
            other = other or checkpoint
            places = _places(engine, stacks, self._failure.files)
            if any(places.get(path) != place for path, place in present.items()):
                return checkpoint, other
        return None, other

    async def _by_workspace(self, branch: Sequence[Checkpoint]) -> Checkpoint | None:
        """An interpreter's packages may lie in the workspace: notebook and .venv side by side."""
        files = self._session.files
        roots = [os.path.realpath(root) for root in files.roots]
        failed = {
            path
            for path in map(os.path.realpath, self._failure.files)
            if any(path.startswith(f"{root}/") for root in roots)
        }
        if not failed or not files.enabled:
            return None
        for checkpoint in branch[: -_SHOWN - 1 : -1]:
            capture = checkpoint.capture("filesystem", engine="workspace")
            if capture is None or capture.state != "ready" or capture.ref is None:
                continue
            with contextlib.suppress(WorkspaceError, OSError):
                for change in await files.diff(capture.ref, None):
                    path = f"{roots[change.root]}/{os.fsdecode(change.path)}"
                    if any(one == path or one.startswith(f"{path}/") for one in failed):
                        return checkpoint
        return None

    def _answer(self, request: Request) -> None:
        """Answer one request of the shell channel, which is in flight."""
        session = self._session
        # what comes while this is answered waits for its turn
        session.router.hold("rescue")
        session.router.status("busy", request)
        if request.type == "execute_request":
            self._execute(request)
            return
        if request.type.endswith("_request"):
            content = dict(_CONTENT.get(request.type, {}))
            if request.type == "kernel_info_request":
                content = session.kernel_info_reply()
            elif request.type == "comm_info_request":
                content = {"comms": {}}
            session.router.answer_in_flight(content=content)
        else:
            session.router.answer_in_flight()
        self._next()

    def _execute(self, request: Request) -> None:
        session = self._session
        if not request.code.strip():
            session.router.answer_in_flight()
            self._next()
            return
        if request.is_cell:
            self._count += 1
            request.input_published = self._count
            shown = {"code": request.code, "execution_count": self._count}
            session.channels.send("iopub", "execute_input", shown, request.message)
        found = _MAGIC.match(request.code)
        if found is None or self._refused:
            name = EnvironmentRefused.__name__ if self._refused else ERROR_NAME
            session.router.answer_in_flight(error=(name, self.text()))
            self._next()
            return
        session.background(self._carry_out(request, found[1], found[2]))

    def _next(self) -> None:
        # not at once: a long queue would be a deep recursion
        asyncio.get_running_loop().call_soon(self._session.router.release, "rescue")

    # Magics

    async def _carry_out(self, request: Request, magic: str, rest: str) -> None:
        router = self._session.router
        try:
            try:
                text = await self._magic(request, magic, _words(rest))
                router.answer_in_flight(text=text + "\n")
            except (TimeTravelError, WorkspaceError, OSError) as error:
                router.answer_in_flight(error=(type(error).__name__, str(error)))
            except Exception as error:
                self._session.log.exception("%s in a kernel without a process", magic)
                router.answer_in_flight(error=(type(error).__name__, str(error)))
        finally:
            router.release("rescue")

    async def _magic(self, request: Request, magic: str, words: Sequence[str]) -> str:
        if magic == "restore":
            return await self._restore(request, words)
        if magic == "timeline" or list(words) == ["list"]:
            return self._listing()
        if list(words[:1]) == ["reset"]:  # with --process or without: the process is a fresh one
            restorer = self._session.restores
            if not isinstance(restorer, RescueRestorer):
                raise RestoreRefused("The kernel runs again. Nothing was changed.")
            return str((await restorer.reset(request))["text"])
        if list(words) in ([], ["status"]):
            return self._status()
        raise BadRequest(
            f"`%timetravel {' '.join(words)}` needs a running Python. {self._failure.text} "
            "Nothing was done."
        )

    async def _restore(self, request: Request, words: Sequence[str]) -> str:
        asked = _read_restore(words)
        restores = self._session.restores
        target = restores.target(asked.checkpoint, asked.undo)
        if asked.dry_run:
            return str((await restores.dry_run(target, asked))["text"])
        result = await restores.restore(target, asked, request=request, how={"kind": "restore"})
        return str(result["text"])

    def _listing(self) -> str:
        timeline = self._session.timeline
        lines = []
        for checkpoint in list(timeline)[-_SHOWN:]:
            here = "  ← you are here" if checkpoint is timeline.head else ""
            label = f"  [{one_line(checkpoint.label, 40)}]" if checkpoint.label else ""
            what = one_line(checkpoint.comment or checkpoint.code or checkpoint.reason, 64)
            clock = checkpoint.created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
            lines.append(f"#{checkpoint.number}  {clock}  {what}{label}{here}")
        return "\n".join(lines) or "no checkpoints"

    def _status(self) -> str:
        session = self._session
        covered = ", ".join(session.environment.status()["covered"]) or "nothing"
        lines = [
            self._failure.text,
            f"  checkpoints  {len(session.timeline)}, {len(session.frozen)} with their memory",
            f"  workspace    {', '.join(map(str, session.files.roots))}",
            f"  environment  {covered}",
        ]
        lines += [f"  limit        {text}" for text in session.limits if text != self._failure.text]
        return "\n".join(lines)


def _read_restore(words: Sequence[str]) -> RestoreRequest:
    """What stands behind %restore. Raises BadRequest for an option that there is not."""
    given: dict[str, Any] = {}
    names = []
    todo = list(words)
    while todo:
        word = todo.pop(0)
        name, _, value = word.partition("=")
        if name == "--only":
            given["only"] = value or (todo.pop(0) if todo else "")
            if given["only"] not in ("files", "process"):
                raise BadRequest("--only takes process or files. Nothing was done.")
        elif word in ("--undo", "--dry-run", "--force"):
            given[word[2:].replace("-", "_")] = True
        elif word.startswith("--"):
            raise BadRequest(f"%restore has no option {word}. Nothing was done.")
        else:
            names.append(word)
    if names:
        given["checkpoint"] = " ".join(names)
    return RestoreRequest(**{**given, "force": True})


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed
        return text.split()


def _places(
    engine: OverlayEngine, stacks: Mapping[str, Sequence[str]], paths: Iterable[str]
) -> dict[str, bytes | None]:
    """Where files lie on the disk in a stack: two stacks that show the same file agree."""
    found: dict[str, bytes | None] = {}
    for path in paths:
        real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        root = engine.plan.root_of(real)
        if root is None:
            continue
        with contextlib.suppress(OSError, ValueError), engine.views(stacks)[root.path] as view:
            one = view.lookup(os.fsencode(os.path.relpath(real, root.path)))
            found[path] = one.real if one is not None else None
    return found


def _kernel_info() -> dict[str, Any]:
    """What a client must know of a kernel whose Python cannot be asked."""
    version = platform.python_version()
    return {
        "protocol_version": "5.4",
        "implementation": "ipython",
        "implementation_version": "",
        "language_info": {
            "name": "python",
            "version": version,
            "mimetype": "text/x-python",
            "codemirror_mode": {"name": "ipython", "version": int(version.split(".")[0])},
            "pygments_lexer": "ipython3",
            "nbconvert_exporter": "python",
            "file_extension": ".py",
        },
        "banner": "The Python of this kernel does not start; the cells say why.\n",
        "help_links": [],
        "supported_features": [],
        "timetravel": {"version": VERSION},
    }
