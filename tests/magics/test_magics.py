"""What each magic asks for, and how it answers. The link only notes; real kernels are next door."""

from __future__ import annotations

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError

from kernel_runtime.errors import UnknownCheckpoint

RESTORE = {"checkpoint": -1, "only": None, "dry_run": False, "undo": False, "force": False}


@pytest.mark.parametrize(
    ("line", "command", "args"),
    [
        ("checkpoint", "checkpoint", {"comment": "", "label": None, "pin": False}),
        ("checkpoint a $HOME {1+1}", "checkpoint", {"comment": "a $HOME {1+1}"}),
        ('checkpoint "a b" --label L --pin', "checkpoint",
         {"comment": "a b", "label": "L", "pin": True}),
        ("checkpoint --pin my words", "checkpoint", {"comment": "my words", "pin": True}),
        ("checkpoint --pin 4", "pin", {"checkpoint": 4, "pinned": True}),
        ("checkpoint --pin -1", "pin", {"checkpoint": -1, "pinned": True}),
        ("checkpoint --unpin clean", "pin", {"checkpoint": "clean", "pinned": False}),
        ("checkpoint --delete 4", "delete", {"checkpoint": 4}),
        ("restore", "restore", RESTORE),
        ("restore 12", "restore", {**RESTORE, "checkpoint": 12}),
        ("restore -2", "restore", {**RESTORE, "checkpoint": -2}),
        ("restore #12", "restore", {**RESTORE, "checkpoint": "#12"}),
        ('restore "before the join"', "restore", {**RESTORE, "checkpoint": "before the join"}),
        ("restore before the join", "restore", {**RESTORE, "checkpoint": "before the join"}),
        ("restore 3 --only files --dry-run", "restore",
         {**RESTORE, "checkpoint": 3, "only": "files", "dry_run": True}),
        ("restore --undo --force", "restore", {**RESTORE, "undo": True, "force": True}),
        ("timeline", "list", {"include_auto": True, "history": None}),
        ("timeline --manual", "list", {"include_auto": False}),
        ("timeline 3", "get", {"checkpoint": 3}),
        ("timeline before the join", "get", {"checkpoint": "before the join"}),
        ("timeline diff 4", "diff", {"a": 4, "b": None}),
        ('timeline diff "before the join" -1', "diff", {"a": "before the join", "b": -1}),
        ("timetravel config", "config", {"set": {}}),
        ("timetravel config auto=changed twins=false", "config",
         {"set": {"auto": "changed", "twins": "false"}}),
        ("timetravel label 3 clean data", "label", {"checkpoint": 3, "label": "clean data"}),
        ("timetravel label 3", "label", {"checkpoint": 3, "label": None}),
    ],
)  # fmt: skip
def test_lines_and_what_they_ask(shell, link, line, command, args):
    name, _, rest = line.partition(" ")
    shell.run_line_magic(name, rest)
    ((asked, given),) = link.asked
    assert asked == command
    assert {key: given[key] for key in args} == args


@pytest.mark.parametrize(
    "line",
    [
        "checkpoint --delete 1 --pin 2",
        "checkpoint --delete 1 --label x",
        "checkpoint --unpin",
        "restore 3 --undo",
        "restore --only memory",
        "timeline diff",
        "timeline diff 1 2 3",
        "timetravel nonsense",
        "timetravel status now",
        "timetravel config auto",
        "timetravel label",
    ],
)
def test_what_makes_no_sense_asks_nothing(shell, link, line):
    name, _, rest = line.partition(" ")
    with pytest.raises(UsageError):
        shell.run_line_magic(name, rest)
    assert link.asked == []


def test_several_are_deleted_one_by_one(shell, link, capsys):
    shell.run_line_magic("checkpoint", "--delete 4 5 clean")
    assert [args["checkpoint"] for _, args in link.asked] == [4, 5, "clean"]
    assert capsys.readouterr().out.count("deleted #") == 3


def test_a_checkpoint_is_answered_in_one_line(shell, capsys):
    shell.run_line_magic("checkpoint", "x")
    assert capsys.readouterr().out == "checkpoint #6 (3.1 ms)\n"


def test_our_errors_are_shown_without_a_traceback(shell, link, capsys):
    def refuse(command, args):
        raise UnknownCheckpoint(99, "The nearest are #5, #6.")

    link.request = refuse
    result = shell.run_cell("%restore 99")
    assert isinstance(result.error_in_exec, UnknownCheckpoint)
    shown = capsys.readouterr()
    told = (shown.out + shown.err).strip()
    assert told == (
        "UnknownCheckpoint: There is no checkpoint 99. The nearest are #5, #6. Nothing was changed."
    )


def test_help_shows_what_the_parser_knows(shell, capsys):
    for name in ("checkpoint", "restore", "timeline", "timetravel"):
        shell.run_line_magic(name, "-h")
        told = capsys.readouterr().out
        assert f"usage: %{name}" in told
        assert shell.find_line_magic(name).__doc__ == told[:-1]


def completions(shell, line):
    shell.Completer.use_jedi = False
    with provisionalcompleter():
        return {found.text for found in shell.Completer.completions(line, len(line))}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("%restore ", {"--undo", "--dry-run", "clean"}),
        ("%restore --only ", {"files", "process"}),
        ("%timetravel ", {"status", "config", "list"}),
        ("%checkpoint ", {"--label"}),
        ("%timeline ", {"diff", "clean"}),
    ],
)
def test_completion(shell, line, offered):
    assert offered <= completions(shell, line)


def test_completion_without_an_answer_offers_what_is_fixed(shell, link):
    def refuse(command, args):
        raise UnknownCheckpoint(1)

    link.request = refuse
    assert "--undo" in completions(shell, "%restore ")
