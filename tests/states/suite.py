"""Small programs, each of which sets up one kind of state, and what becomes of it over an engine.

In the manner of CRIU's own suite (zdtm): a program has cells, told apart by ``# %%`` lines:

    setup    sets the state up
    change   what happens to it after the checkpoint (may be missing)
    check    raises if it is not as it was at the checkpoint

and before them comments that say what must be known of it:

    # named: REGEX   where an engine loses the state, what the restore or the checkpoint says of it
    # needs: MODULE  is left out where that is not installed
    # last           it is set up last and checked first: it disturbs the others in between
    # dmtcp: TEXT    why it is lost, or cannot be set up, under DMTCP, where nobody says so
    # apart: ENGINE  it has a kernel of its own over that engine: it ends the others there
    # not over: ENGINE  it is not tried over that engine

All others run in one kernel at once, so no two may use the same name. ``carried`` is a dict that a
change can put plain data into, of which the check sees what the kernel had before everything ended.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import queue
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kernel_runtime.dmtcp import DmtcpError
from kernel_runtime.dmtcp import find as find_dmtcp
from kernel_runtime.engines import criu_program
from tests.kernel.durable_world import durable, image, kill

PROGRAMS: Final = Path(__file__).parent / "programs"
KEPT, NAMED, SILENT, LEFT_OUT = "kept", "lost, named", "lost silently", "left out"
NOT_TRIED = "not tried"
LOST, GONE = "lost", "the process lost, named"
NOT_SET_UP, NOT_CAPTURED = "cannot be set up", "cannot be captured"
SHARED_MEMORY: Final = Path("/dev/shm")


@dataclass(frozen=True)
class Program:
    """One program."""

    name: str
    about: str
    cells: dict[str, str]
    named: str
    needs: str
    last: bool
    dmtcp: str
    apart: str
    not_over: str

    @property
    def names(self) -> set[str]:
        """The names that it binds, modules and single letters left out."""
        tree = ast.parse("\n".join(self.cells.values()))
        return {
            node.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            if len(node.id) > 1 and not node.id.startswith("_")
        } | {
            node.name
            for node in tree.body
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        }


def read(path: Path) -> Program:
    """Understand a program's file."""
    head, *parts = re.split(r"^# %% (\w+)\n", path.read_text(), flags=re.MULTILINE)
    cells = dict(zip(parts[::2], parts[1::2]))
    said = dict(re.findall(r"^# (named|needs|dmtcp|apart|not over): (.+)$", head, re.MULTILINE))
    about = str(ast.literal_eval(head.split("\n\n")[0]))
    last = bool(re.search(r"^# last$", head, re.MULTILINE))
    words = ("named", "needs", "dmtcp", "apart", "not over")
    named, needs, dmtcp, apart, not_over = (said.get(word, "") for word in words)
    return Program(path.stem, about, cells, named, needs, last, dmtcp, apart, not_over)


def programs() -> list[Program]:
    """All of them, in the order in which they are set up."""
    found = [read(path) for path in PROGRAMS.glob("*.py")]
    return sorted(found, key=lambda program: (program.last, program.name))


@dataclass(frozen=True)
class Way:
    """How the suite goes over an engine."""

    engine: str
    arguments: tuple[str, ...] = ()
    in_place: bool = False
    """Restored in the same kernel; else everything is killed, and restored in a new one."""
    missing: Callable[[], str] = lambda: ""
    at_once: int = 1000
    """Programs in one kernel."""


def _no_criu() -> str:
    try:
        criu_program.may_run()
        criu_program.find()
    except criu_program.CriuUnusable as error:
        return str(error)
    return ""


def _no_dmtcp() -> str:
    try:
        find_dmtcp()
    except DmtcpError as error:
        return str(error)
    return ""


WAYS: Final = {
    way.engine: way
    for way in (
        Way("fork", in_place=True),
        Way("image"),
        Way("criu", ("--Supervisor.images_by=criu",), missing=_no_criu),
        Way(
            "dmtcp",
            ("--Supervisor.process_engine=dmtcp", "--Supervisor.auto=off"),
            missing=_no_dmtcp,
            at_once=4,  # more of them disturb one another
        ),
    )
}


@dataclass
class Outcome:
    """What became of one program's state."""

    kind: str
    text: str = ""
    """The error of its check."""
    why: str = ""

    @property
    def shown(self) -> str:
        """As the table has it."""
        return f"{self.kind}: {self.why}" if self.why else self.kind


@dataclass
class Course:
    """The suite's course over one engine."""

    way: Way
    start: Callable[..., Any]
    document: dict[str, Any]
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    apart: Program | None = None
    """The one that has this course to itself."""
    notebook: Any = None
    """The kernel that runs at its end."""

    def run_all(self) -> dict[str, Outcome]:
        """As many courses as the way needs, and one for each program that is apart."""
        together = list(self._chosen())
        size = self.way.at_once
        groups = [together[start : start + size] for start in range(0, len(together), size)]
        for group in groups:
            self._with_another_notebook(group)
        for program in programs():
            if program.apart == self.way.engine:
                self._with_another_notebook([program], program)
        return self.outcomes

    def _with_another_notebook(
        self, chosen: Sequence[Program], apart: Program | None = None
    ) -> None:
        path = Path(self.document["cwd"], f"{chosen[0].name}.ipynb")
        path.write_text("{}")
        document = {**self.document, "env": {"JPY_SESSION_NAME": str(path)}}
        course = Course(self.way, self.start, document, self.outcomes, apart)
        course.run(chosen)
        kill(course.notebook)

    def _start(self) -> Any:
        arguments = ("--Supervisor.durability=manual", *self.way.arguments)
        self.notebook = self.start(*arguments, **self.document)
        return self.notebook

    def run(self, chosen: Sequence[Program]) -> dict[str, Outcome]:
        """Set all up, capture, end, restore, check all."""
        notebook = self._start()
        notebook.run("carried = {}")
        for program in chosen:
            if not self._set_up(notebook, program):
                return self.outcomes
        made = notebook.run("%checkpoint", ok=False)
        if made.status != "ok" and self.apart is not None and self.apart.dmtcp:
            outcome = Outcome(NOT_CAPTURED, str(made.reply), self.apart.dmtcp)
            self.outcomes[self.apart.name] = outcome
            return self.outcomes
        assert made.status == "ok", made.error or made.reply
        number = int(made.out.split("#")[1].split()[0])
        said = ""
        if self.apart is not None and self.apart.dmtcp:
            found = image(notebook, number, self.way.engine)
            if found["state"] == "failed":
                outcome = Outcome(NOT_CAPTURED, found["error"], self.apart.dmtcp)
                self.outcomes[self.apart.name] = outcome
                return self.outcomes
        if not self.way.in_place:
            said += json.dumps(self._captured(notebook, number))
        for program in chosen:
            if "change" in program.cells:
                self._cell(notebook, program, "change")
        carried = notebook.run("import json; print(json.dumps(carried))").out
        if not self.way.in_place:
            kill(notebook)
            clear_shared_memory()
            notebook = self._start()
        restored = notebook.run(f"%restore {number}", ok=False)
        told = restored.error + restored.out
        if self.apart is not None and ("a fresh one has" in told or restored.status != "ok"):
            assert self._is_named(self.apart, said + told), said + told
            self.outcomes[self.apart.name] = Outcome(GONE, told)
            return self.outcomes
        assert restored.status == "ok", told
        assert "a fresh one has" not in told and "another image" not in told, told
        notebook.run(f"carried.update({carried})")
        for program in reversed(chosen):
            self._check(notebook, program, said + told)
        return self.outcomes

    def _chosen(self) -> Iterator[Program]:
        for program in programs():
            if program.apart == self.way.engine:
                continue
            if program.not_over == self.way.engine:
                self.outcomes[program.name] = Outcome(NOT_TRIED)
            elif program.needs and importlib.util.find_spec(program.needs) is None:
                self.outcomes[program.name] = Outcome(LEFT_OUT, f"{program.needs} is not here")
            else:
                yield program

    def _set_up(self, notebook: Any, program: Program) -> bool:
        """Say whether it could be."""
        done = notebook.run(program.cells["setup"], ok=False)
        if self.apart is not None and done.status != "ok" and program.dmtcp:
            self.outcomes[program.name] = Outcome(NOT_SET_UP, done.error, program.dmtcp)
            return False
        assert done.status == "ok", f"{program.name}, setup: {done.error}"
        return True

    def _cell(self, notebook: Any, program: Program, cell: str) -> None:
        done = notebook.run(program.cells[cell], ok=False)
        assert done.status == "ok", f"{program.name}, {cell}: {done.error}"

    def _captured(self, notebook: Any, number: int) -> Any:
        durable(notebook, number)  # what is shown as ready then is on the disk
        capture = image(notebook, number, self.way.engine)
        assert capture["state"] == "ready", capture
        return capture["not_captured"]

    def _check(self, notebook: Any, program: Program, told: str) -> None:
        try:
            done = notebook.run(program.cells["check"], ok=False)
        except queue.Empty:
            raise AssertionError(f"{program.name}: its check does not end") from None
        if done.status == "ok":
            outcome = Outcome(KEPT)
        elif self._is_named(program, told):
            outcome = Outcome(NAMED, done.error)
        elif self.way.engine == "dmtcp" and program.dmtcp:
            outcome = Outcome(LOST, done.error, program.dmtcp)
        else:
            outcome = Outcome(SILENT, done.error)
        self.outcomes[program.name] = outcome

    @staticmethod
    def _is_named(program: Program, told: str) -> bool:
        # names of variables and files say nothing
        lines = [
            line for line in told.splitlines() if not line.startswith(("  variables", "  files"))
        ]
        return bool(program.named and re.search(program.named, "\n".join(lines), re.IGNORECASE))


def clear_shared_memory() -> None:
    """As after a reboot: the programs' own files are gone; not those of another user's run."""
    for path in SHARED_MEMORY.glob("*tt-states-*"):
        with suppress(OSError):
            if path.stat().st_uid == os.getuid():
                path.unlink()
