"""What each magic asks for, and how it answers. The link only notes; real kernels are next door."""

from __future__ import annotations

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError
from IPython.core.oinspect import getdoc

from kernel_runtime.errors import UnknownCheckpoint


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
        ("restore", "restore", {}),
        ("restore 12", "restore", {"checkpoint": 12}),
        ("restore -2", "restore", {"checkpoint": -2}),
        ("restore #12", "restore", {"checkpoint": "#12"}),
        ('restore "before the join"', "restore", {"checkpoint": "before the join"}),
        ("restore before the join", "restore", {"checkpoint": "before the join"}),
        ("restore 3 --only files --dry-run", "restore",
         {"checkpoint": 3, "only": "files", "dry_run": True}),
        ("restore --undo --force", "restore", {"undo": True, "force": True}),
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
        ("timetravel files", "outside", {"each": False}),
        ("timetravel files --all", "outside", {"each": True}),
        ("timetravel apply", "apply", {"paths": [], "dry_run": False, "force": False}),
        ("timetravel apply /a/b '/c d' --dry-run --force", "apply",
         {"paths": ["/a/b", "/c d"], "dry_run": True, "force": True}),
        ("timetravel reset", "reset", {"process": False}),
        ("timetravel reset --process", "reset", {"process": True}),
    ],
)  # fmt: skip
def test_lines_and_what_they_ask(shell, link, line, command, args):
    name, _, rest = line.partition(" ")
    shell.run_line_magic(name, rest)
    ((asked, given),) = link.asked
    assert asked == command
    if command == "restore":
        assert given == args
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
        "timetravel files now",
        "timetravel status --all",
        "timetravel files --force",
        "timetravel apply x --process",
        "timetravel reset --dry-run",
    ],
)
def test_what_makes_no_sense_asks_nothing(shell, link, line):
    name, _, rest = line.partition(" ")
    with pytest.raises(UsageError):
        shell.run_line_magic(name, rest)
    assert link.asked == []


@pytest.mark.parametrize(
    ("line", "spec"),
    [
        ("{n}", 7),
        ("$n", 7),
        ("{ n }", "{ n }"),
        ("{name}", "before the join"),
        ("before {n} joins", "before 7 joins"),
        ("{missing}", "{missing}"),
        ("'{n}'", "{n}"),
        ("{thing}", "{thing}"),
        ("{n}x", "{n}x"),
    ],
)
def test_a_variable_stands_for_its_value_in_restore(shell, link, line, spec):
    shell.user_ns.update(n=7, name="before the join", thing=object())
    shell.run_line_magic("restore", line)
    assert link.asked[-1][1]["checkpoint"] == spec
    shell.run_line_magic("timeline", "diff {n}")
    assert link.asked[-1][1]["a"] == 7


@pytest.mark.parametrize("line", ["'   '", '"" ', "' '"])
def test_blanks_are_no_comment(shell, link, line):
    shell.run_line_magic("checkpoint", line)
    assert link.asked[-1][1]["comment"] == ""


def test_paths_are_made_absolute_where_the_cell_is(shell, link, tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "real/file").symlink_to("elsewhere")
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "link"))
    shell.run_line_magic("timetravel", "apply link/file ~/x real")
    real = str(tmp_path / "real")
    assert link.asked[-1][1]["paths"] == [f"{real}/file", f"{real}/x", real]


@pytest.mark.parametrize("name", ["dryrun", "transaction"])
def test_cells_that_are_tried_are_the_kernels(shell, link, name, capsys):
    with pytest.raises(UsageError, match="first line of a cell"):
        shell.run_cell_magic(name, "", "x = 1")
    shell.run_cell_magic(name, "-h", "x = 1")
    assert f"usage: %%{name}" in capsys.readouterr().out
    assert link.asked == [] and "x" not in shell.user_ns


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
        assert getdoc(shell.find_line_magic(name)) == told.rstrip()


def completions(shell, line):
    shell.Completer.use_jedi = False
    with provisionalcompleter():
        return {found.text for found in shell.Completer.completions(line, len(line))}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("%restore ", {"--undo", "--dry-run", "clean"}),
        ("%restore --only ", {"files", "process"}),
        ("%timetravel ", {"status", "config", "list", "files", "apply", "reset"}),
        ("%timetravel apply ", {"--dry-run", "--force"}),
        ("%checkpoint ", {"--label"}),
        ("%timeline ", {"diff", "clean"}),
    ],
)
def test_completion(shell, line, offered):
    assert offered <= completions(shell, line)


def test_completion_of_files(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").touch()
    (tmp_path / "deep").mkdir()
    assert completions(shell, "%restore 1 --paths d") == {"data.csv", "deep/"}


def test_completion_without_an_answer_offers_what_is_fixed(shell, link):
    def refuse(command, args):
        raise UnknownCheckpoint(1)

    link.request = refuse
    assert "--undo" in completions(shell, "%restore ")
