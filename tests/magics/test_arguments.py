"""How a line becomes words, and words a comment again."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given
from IPython.core.error import UsageError

from jupyter_timetravel.arguments import phrase, words
from jupyter_timetravel.parsers import checkpoint_parser, restore_parser


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", []),
        ("   ", []),
        ("a b", ["a", "b"]),
        ('"a b" c', ["a b", "c"]),
        ("'a b'", ["a b"]),
        ("Anna's join", ["Anna's", "join"]),
        ('say "hi";', ["say", '"hi";']),
        (r'"a \"b\" \\ \n"', [r'a "b" \ \n']),
        ('"unfinished', ['"unfinished']),
        ('""', [""]),
        ("{x} $HOME `id`", ["{x}", "$HOME", "`id`"]),
    ],
)
def test_words(line, expected):
    assert words(line) == expected


@given(st.text())
def test_no_line_is_refused_and_nothing_but_blanks_is_lost(line):
    found = words(line)
    assert all(line[w.start : w.end] == w for w in found if not w.quoted)
    if not any(w.quoted for w in found):
        assert "".join(found) == "".join(line.split())


@given(st.text(min_size=1))
def test_a_quoted_text_is_one_word(text):
    quoted = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    assert words(quoted) == [text]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("before   the join", "before   the join"),
        ("  two\nlines ", "two\nlines"),
        ('Anna\'s -1 "odd";', 'Anna\'s -1 "odd";'),
        ('"a  b"', "a  b"),
        ('"a  b" c', "a  b c"),
        ("a --label L b", "a b"),
        ("--label L a  b", "a  b"),
        ("-- --force -x", "--force -x"),
        ('"--force"', "--force"),
        ('--label "-L" "-2"', "-2"),
        ("# not a comment", "# not a comment"),
    ],
)
def test_phrase_keeps_the_text_as_it_was_typed(line, expected):
    args = checkpoint_parser().parse_line(line)
    assert phrase(args.comment, line) == expected


@pytest.mark.parametrize("line", ["--nonsense", "--label", "--delete"])
def test_what_is_wrong_is_told_in_one_line(line):
    with pytest.raises(UsageError, match=r"%checkpoint: .* \(see %checkpoint -h\)") as caught:
        checkpoint_parser().parse_line(line)
    assert "\n" not in str(caught.value)


def test_negative_numbers_are_no_options():
    assert restore_parser().parse_line("-2").checkpoint == ["-2"]
    assert restore_parser().parse_line("-2 --only 'files'").only == "files"


def test_help_is_printed(capsys):
    assert restore_parser().parse_line("-h") is None
    assert "--undo" in capsys.readouterr().out


def test_an_option_is_given_once():
    with pytest.raises(UsageError, match="--vars: is given twice"):
        restore_parser().parse_line("1 --vars a --vars b")
    args = restore_parser().parse_line("1 --paths a b --paths c")
    assert args.paths == ["a", "b", "c"]
    args = restore_parser().parse_line("1 --vars a")
    assert (args.checkpoint, args.vars) == (["1"], "a")
