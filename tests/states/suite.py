"""Small programs, each of which sets up one kind of state, and what becomes of it over an engine.

In the manner of CRIU's own suite (zdtm): a program has cells, told apart by ``# %%`` lines:

    setup    sets the state up
    change   what happens to it after the checkpoint (may be missing)
    check    raises if it is not as it was at the checkpoint

and before them comments that say what must be known of it:

    # named: REGEX   where an engine loses the state, what the restore or the checkpoint says of it
    # needs: MODULE  is left out where that is not installed
    # last           it is set up last and checked first: it disturbs the others in between

All run in one kernel at once, so no two may use the same name. ``carried`` is a dict that a change
can put plain data into, of which the check sees what the kernel had before everything ended.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import queue
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kernel_runtime.engines import criu_program
from tests.kernel.durable_world import image, kill

PROGRAMS: Final = Path(__file__).parent / "programs"
KEPT, NAMED, SILENT, LEFT_OUT = "kept", "lost, named", "lost silently", "left out"
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
    said = dict(re.findall(r"^# (named|needs): (.+)$", head, re.MULTILINE))
    about = str(ast.literal_eval(head.split("\n\n")[0]))
    last = bool(re.search(r"^# last$", head, re.MULTILINE))
    return Program(path.stem, about, cells, said.get("named", ""), said.get("needs", ""), last)


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


def _no_criu() -> str:
    try:
        criu_program.may_run()
        criu_program.find()
    except criu_program.CriuUnusable as error:
        return str(error)
    return ""


WAYS: Final = {
    way.engine: way
    for way in (
        Way("fork", in_place=True),
        Way("image"),
        Way("criu", ("--Supervisor.images_by=criu",), missing=_no_criu),
    )
}


@dataclass
class Outcome:
    """What became of one program's state."""

    kind: str
    text: str = ""
    """The error of its check."""


@dataclass
class Course:
    """The suite's course over one engine."""

    way: Way
    start: Callable[..., Any]
    document: dict[str, Any]
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def run(self) -> dict[str, Outcome]:
        """Set all up, capture, end, restore, check all."""
        arguments = ("--Supervisor.durability=manual", *self.way.arguments)
        notebook = self.start(*arguments, **self.document)
        chosen = list(self._chosen())
        notebook.run("carried = {}")
        for program in chosen:
            self._cell(notebook, program, "setup")
        number = int(notebook.run("%checkpoint").out.split("#")[1].split()[0])
        said = ""
        if not self.way.in_place:
            said += json.dumps(self._captured(notebook, number))
        for program in chosen:
            if "change" in program.cells:
                self._cell(notebook, program, "change")
        carried = notebook.run("import json; print(json.dumps(carried))").out
        if not self.way.in_place:
            kill(notebook)
            clear_shared_memory()
            notebook = self.start(*arguments, **self.document)
        told = notebook.run(f"%restore {number}").out
        assert "a fresh one has" not in told and "another image" not in told, told
        notebook.run(f"carried.update({carried})")
        for program in reversed(chosen):
            self._check(notebook, program, said + told)
        return self.outcomes

    def _chosen(self) -> Iterator[Program]:
        for program in programs():
            if program.needs and importlib.util.find_spec(program.needs) is None:
                self.outcomes[program.name] = Outcome(LEFT_OUT, f"{program.needs} is not here")
            else:
                yield program

    def _cell(self, notebook: Any, program: Program, cell: str) -> None:
        done = notebook.run(program.cells[cell], ok=False)
        assert done.status == "ok", f"{program.name}, {cell}: {done.error}"

    def _captured(self, notebook: Any, number: int) -> Any:
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
        elif program.named and re.search(program.named, told, re.IGNORECASE):
            outcome = Outcome(NAMED, done.error)
        else:
            outcome = Outcome(SILENT, done.error)
        self.outcomes[program.name] = outcome


def clear_shared_memory() -> None:
    """As after a reboot: the programs' own files are gone."""
    for path in SHARED_MEMORY.glob("*tt-states-*"):
        with suppress(OSError):
            path.unlink()
