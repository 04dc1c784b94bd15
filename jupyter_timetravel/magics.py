"""``%checkpoint``, ``%restore``, ``%replay``, ``%timeline`` and ``%timetravel`` in our kernel.

``%%dryrun`` and ``%%transaction`` are carried out by the kernel (kernel_runtime.executor.trials).

They send the commands of docs/protocol.md over the executor's link. A restore that succeeds does
not return: the cell ends there, silently, and the supervisor gives its reply and its output.
"""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from IPython.display import display

from jupyter_timetravel import commands, completion, render
from jupyter_timetravel.arguments import Line, phrase, words
from jupyter_timetravel.commands import Command
from jupyter_timetravel.going_back import going_back
from jupyter_timetravel.parsers import (
    checkpoint_parser,
    dryrun_parser,
    replay_parser,
    restore_parser,
    timeline_parser,
    timetravel_parser,
    transaction_parser,
)
from kernel_runtime.errors import BadRequest, TimeTravelError
from kernel_runtime.timeline.names import NUMBER, RELATIVE, Spec
from kernel_runtime.timeline.report import diff_text, title

CHECKPOINT: Final = Line(checkpoint_parser)
RESTORE: Final = Line(restore_parser)
REPLAY: Final = Line(replay_parser)
TIMELINE: Final = Line(timeline_parser)
TIMETRAVEL: Final = Line(timetravel_parser)
DRYRUN: Final = Line(dryrun_parser)
TRANSACTION: Final = Line(transaction_parser)

_VARIABLE: Final = re.compile(r"\{\s*([^\W\d]\w*)\s*\}|\$([^\W\d]\w*)")
_OPTIONS: Final = {
    "files": {"all"},
    "apply": {"dry_run", "force"},
    "reset": {"process"},
    "export": {"check", "force"},
}


_FIRST_LINE: Final = (
    '{} works as the first line of a cell, in the kernel "Python 3 (time travel)"; nothing was run'
)


class Link(Protocol):
    """How the magics reach the supervisor."""

    def request(self, command: str, args: dict[str, Any]) -> dict[str, Any]:
        """The result of a command. Raises the TimeTravelError that was answered."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Show our own errors by their message: a traceback through this file helps nobody."""
    try:
        yield
    except TimeTravelError as error:
        told = f"{type(error).__name__}: {error}"
        # IPython asks an exception for this before it formats a traceback of its own.
        error._render_traceback_ = lambda: [told]  # type: ignore[attr-defined]
        raise


@magics_class
class TimeTravelMagics(Magics):
    """The magics of one shell; ``link`` reaches its supervisor."""

    def __init__(self, shell: InteractiveShell, link: Link) -> None:
        super().__init__(shell)
        self._shell = shell
        self._link = link

    def register(self) -> None:
        """Make the magics known to the shell, with completion."""
        self._shell.register_magics(self)
        completion.register(self._shell, self._labels)

    # -- %checkpoint ------------------------------------------------------------------------

    @no_var_expand
    @line_magic
    @CHECKPOINT.documents
    def checkpoint(self, line: str) -> None:
        args = CHECKPOINT.parse(line)
        if args is None:
            return
        # "--pin some words": the words are the comment of the new one.
        comment: list[str] = list(args.comment)
        if isinstance(args.pin, str) and not _is_number(args.pin):
            comment.append(args.pin)
            args.pin = True
        existing = [args.delete is not None, args.unpin is not None, isinstance(args.pin, str)]
        if sum(existing) > 1 or (any(existing) and (comment or args.label)):
            raise UsageError("give one of --delete N, --pin N, --unpin N, or a comment")
        with one_line_errors():
            if args.delete is not None:
                for spec in args.delete:
                    deleted = self._ask(commands.delete(_spec(spec)))["deleted"]
                    print(f"deleted {title(deleted)}")
            elif args.unpin is not None:
                self._pin(args.unpin, False)
            elif isinstance(args.pin, str):
                self._pin(args.pin, True)
            else:
                self._make(phrase(comment, line), args.label, bool(args.pin))

    def _make(self, comment: str, label: str | None, pin: bool) -> None:
        comment = comment if comment.strip() else ""
        started = time.perf_counter()
        result = self._ask(commands.checkpoint(comment, label, pin))
        took_ms = 1000 * (time.perf_counter() - started)
        record = result["checkpoint"]
        took_ms = float(result.get("pause_ms", took_ms))
        print(render.checkpoint_text(record, took_ms, result.get("problem") or ""))

    def _pin(self, spec: str, pinned: bool) -> None:
        record = self._ask(commands.pin(_spec(spec), pinned))["checkpoint"]
        print(f"{title(record)} is {'pinned' if pinned else 'no longer pinned'}")

    # -- %restore ---------------------------------------------------------------------------

    @no_var_expand
    @line_magic
    @RESTORE.documents
    def restore(self, line: str) -> None:
        line = self._expand(line)
        args = RESTORE.parse(line)
        if args is None:
            return
        spec = phrase(args.checkpoint, line)
        if spec and args.undo:
            raise UsageError("--undo takes no checkpoint: it goes back to before the last restore")
        try:
            command = going_back(_spec(spec or "-1"), args)
        except BadRequest as error:
            raise UsageError(str(error)) from None
        with one_line_errors():
            print(self._ask(command)["text"])  # unless the cell has ended there

    # -- %replay ----------------------------------------------------------------------------

    @no_var_expand
    @line_magic
    @REPLAY.documents
    def replay(self, line: str) -> None:
        args = REPLAY.parse(self._expand(line))
        if args is None:
            return
        command = commands.replay(
            _spec(args.checkpoint),
            [part for given in args.skip for part in given.split(",") if part],
            None if args.until is None else _spec(args.until),
            args.stop_on_difference,
            args.dry_run,
        )
        with one_line_errors():
            print(self._ask(command)["text"])  # unless the cell has ended there

    # -- %timeline --------------------------------------------------------------------------

    @no_var_expand
    @line_magic
    @TIMELINE.documents
    def timeline(self, line: str) -> None:
        line = self._expand(line)
        args = TIMELINE.parse(line)
        if args is None:
            return
        with one_line_errors():
            if args.what[:1] == ["diff"]:
                self._diff(args.what[1:])
            elif args.what:
                print(render.details_text(self._ask(commands.get(_spec(phrase(args.what, line))))))
            else:
                listing = self._ask(commands.list_checkpoints(include_auto=not args.manual))
                limit = None if args.all else render.ROWS_SHOWN
                shown = {
                    "text/plain": render.tree_text(listing, limit),
                    "text/html": render.tree_html(listing, limit),
                }
                display(shown, raw=True)  # type: ignore[no-untyped-call]

    def _diff(self, specs: Sequence[str]) -> None:
        if len(specs) not in (1, 2):
            raise UsageError("diff takes one or two checkpoints (quote a name with blanks in it)")
        names = [f"#{spec}" if spec.isdecimal() else spec for spec in specs]
        result = self._ask(
            commands.diff(_spec(specs[0]), _spec(specs[1]) if len(specs) == 2 else None)
        )
        print(diff_text(names[0], names[1] if len(names) == 2 else "now", result))

    # -- %timetravel ------------------------------------------------------------------------

    @no_var_expand
    @line_magic
    @TIMETRAVEL.documents
    def timetravel(self, line: str) -> None:
        args = TIMETRAVEL.parse(line)
        if args is None:
            return
        name, rest = (args.command or ["status"])[0], args.command[1:]
        given = {o for o in ("all", "check", "dry_run", "force", "process") if getattr(args, o)}
        if wrong := given - _OPTIONS.get(name, set()):
            option = min(wrong).replace("_", "-")
            raise UsageError(f"%timetravel {name} takes no --{option} (see %timetravel -h)")
        with one_line_errors():
            if name == "status" and not rest:
                print(render.status_text(self._ask(commands.status())))
            elif name == "list" and not rest:
                print(render.table_text(self._ask(commands.list_checkpoints())))
            elif name == "config":
                settings = _settings(rest)
                print(render.config_text(self._ask(commands.config(settings))["config"]))
            elif name == "label" and rest:
                text = phrase(rest[1:], line) or None
                record = self._ask(commands.label(_spec(rest[0]), text))["checkpoint"]
                print(
                    f"#{record['number']} "
                    + (f"is {record['label']!r}" if text else "has no label")
                )
            elif name == "resume" and not rest:
                command = commands.resume(reseed=args.reseed)
                print(self._ask(command)["text"])  # unless the cell has ended there
            elif name == "verify" and len(rest) < 2:
                print(self._ask(commands.verify(_spec(rest[0]) if rest else None))["text"])
            elif name == "files" and not rest:
                print(render.outside_text(self._ask(commands.outside(args.all)), args.all))
            elif name == "apply":
                paths = [commands.absolute_path(path) for path in rest]
                print(self._ask(commands.apply(paths, args.dry_run, args.force))["text"])
            elif name == "export" and len(rest) == 1:
                print(self._export(Path(rest[0]).expanduser(), args.force, args.check))
            elif name == "reset" and not rest:
                print(self._ask(commands.reset(args.process))["text"])  # unless the cell has ended
            else:
                raise UsageError(f"no such command: {' '.join(args.command)} (see %timetravel -h)")

    def _export(self, path: Path, force: bool, check: bool) -> str:
        # neither is needed by most sessions
        from jupyter_timetravel import clean
        from kernel_runtime.executor.variables import summarize

        cells = self._ask(commands.cells())["cells"]
        hidden = self._shell.user_ns_hidden
        present = summarize(self._shell.user_ns, hidden, budget_s=5.0) if check else None
        return clean.export(path, cells, present, force=force)

    # -- %%dryrun and %%transaction: the kernel takes them from the cell before it runs it -------

    @no_var_expand
    @cell_magic
    @DRYRUN.documents
    def dryrun(self, line: str, cell: str) -> None:
        if line.strip() in ("-h", "--help"):
            print(DRYRUN.help())
        else:
            raise UsageError(_FIRST_LINE.format("%%dryrun"))

    @no_var_expand
    @cell_magic
    @TRANSACTION.documents
    def transaction(self, line: str, cell: str) -> None:
        if line.strip() in ("-h", "--help"):
            print(TRANSACTION.help())
        else:
            raise UsageError(_FIRST_LINE.format("%%transaction"))

    # -- inside -------------------------------------------------------------------------------

    def _expand(self, line: str) -> str:
        """Put numbers and texts in the place of ``{name}`` and ``$name``, where these are words."""
        out, end = "", 0
        for word in words(line):
            found = None if word.quoted else _VARIABLE.fullmatch(word)
            if found is None:
                continue
            value = self._shell.user_ns.get(found[1] or found[2])
            if not isinstance(value, str):
                try:
                    value = str(operator.index(value))
                except TypeError:
                    continue
            out += line[end : word.start] + value
            end = word.end
        return out + line[end:]

    def _ask(self, command: Command[Any]) -> dict[str, Any]:
        return self._link.request(command.name, command.args)

    def _labels(self) -> list[str]:
        """Labels of checkpoints, for completion."""
        records = self._ask(commands.list_checkpoints())["checkpoints"]
        return sorted({record["label"] for record in records if record["label"]})


def _is_number(text: str) -> bool:
    return bool(NUMBER.fullmatch(text) or RELATIVE.fullmatch(text))


def _spec(text: str) -> Spec:
    """A number as one, so that an error says ``99`` and not ``'99'``."""
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text


def _settings(given: Sequence[str]) -> dict[str, Any]:
    """``name=value`` as text; the supervisor knows the types. Raises UsageError."""
    settings = {}
    for setting in given:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise UsageError(f"write an option as name=value, not {setting!r}")
        settings[name] = value
    return settings
