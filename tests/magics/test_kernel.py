"""The magics in a real time-travel kernel."""

from __future__ import annotations

import re


def test_a_session_told_by_its_magics(notebook):
    notebook.cells("x = 1", "y = [1, 2]; open('a', 'w').write('a');")
    made = notebook.run("%checkpoint before Anna's join --label join").out
    assert re.match(r'checkpoint #3 "before Anna\'s join" \[join\] \(\d+\.\d ms\)', made), made
    notebook.run("x = 2; y.append(3); z = 5; open('a', 'w').write('bb');")

    told = notebook.run("%timeline diff join").out
    assert "  + z  int 5" in told and "  ~ a  1 B → 2 B" in told
    told = notebook.run("%restore join --dry-run").out
    assert "  - z  int 5" in told and "  ~ x  int 2 → int 1" in told
    assert notebook.run("print(x, z)").out == "2 5"

    cell = notebook.run("%restore join\nprint('not run')")
    assert cell.out.startswith("restored #3") and "3 variables, 1 file" in cell.out
    assert "not run" not in cell.out
    assert notebook.run("print(x, y, 'z' in dir(), open('a').read())").out == "1 [1, 2] False a"

    notebook.run("%restore --undo")
    assert notebook.run("print(x, y, z, open('a').read())").out == "2 [1, 2, 3] 5 bb"


def test_restore_minus_two_takes_back_the_last_cell(notebook):
    notebook.cells("n = 1", "n = 2")
    assert "%restore -2 takes back the last cell" in notebook.run("%restore").out
    notebook.cells("n = 3", "%restore -2")
    assert notebook.run("print(n)").out == "2"


def test_the_timeline_is_text_and_html(notebook):
    notebook.run("x = 1")
    (shown,) = notebook.run("%timeline").of_type("display_data")
    data = shown["content"]["data"]
    assert "x = 1" in data["text/plain"] and "you are here" in data["text/plain"]
    assert data["text/html"].startswith("<div") and "<script" not in data["text/html"]
    assert "  x  int 1" in notebook.run("%timeline 1").out


def test_names_pins_and_deletions(notebook):
    notebook.cells("x = 1", "x = 2", "x = 3")
    assert notebook.run("%checkpoint --pin 1").out == "#1 is pinned"
    assert notebook.run("%timetravel label 1 first one").out == "#1 is 'first one'"
    refused = notebook.run("%checkpoint --delete 1", ok=False)
    assert (
        "pinned" in refused.error and len(refused.of_type("error")[0]["content"]["traceback"]) == 1
    )
    notebook.run("%checkpoint --unpin 1")
    assert notebook.run("%checkpoint --delete 'first one' 2").out.count("deleted #") == 2
    numbers = [r["number"] for r in notebook.command("list")["checkpoints"]]
    assert 1 not in numbers and 2 not in numbers
    notebook.run("%restore 3")
    assert notebook.run("print(x)").out == "3"


def test_errors_are_one_line_and_change_nothing(notebook):
    notebook.run("x = 1")
    cell = notebook.run("%restore 99", ok=False)
    assert cell.error.startswith("UnknownCheckpoint: There is no checkpoint 99.")
    cell = notebook.run("%restore --nonsense", ok=False)
    assert cell.status == "error"
    assert cell.text("stderr").startswith(
        "UsageError: %restore: unrecognized arguments: --nonsense"
    )
    assert notebook.run("print(x)").out == "1"


def test_status_and_config(notebook):
    assert "engines" in notebook.run("%timetravel").out
    assert "auto=changed" in notebook.run("%timetravel config auto=changed twins=False").out
    config = notebook.command("config")["config"]
    assert config["auto"] == "changed" and config["twins"] is False
    refused = notebook.run("%timetravel config auto=sometimes", ok=False)
    assert refused.error.startswith("BadRequest")
    assert "x = 1" in notebook.cells("x = 1", "%timetravel list")[1].out


def test_hostile_comments(notebook):
    """Case store-11: whatever is accepted is listed on one line, without control characters."""
    notebook.run(
        r"""
cs = ["", "  ", "plain", "it's \"quoted\"; DROP TABLE x;--", "two\nlines",
      "\x1b]0;owned\x07\x1b[2J", "<img src=x onerror=alert(1)>", "{x} $HOME `id`",
      "日本語 👩‍👩‍👧 e\u0301", "\u202eevil", "a\x00b", "\ud800", "--force",
      "# not a comment", "x" * 1_000_000]
for c in cs:
    try: get_ipython().run_line_magic("checkpoint", c)
    except Exception as e: print("refused", type(e).__name__, c[:20].encode("unicode_escape"))
"""
    )
    records = [r for r in notebook.command("list")["checkpoints"] if r["reason"] == "manual"]
    comments = [r["comment"] for r in records]
    assert comments == [
        "",
        "",
        "plain",
        'it\'s "quoted"; DROP TABLE x;--',
        "two\nlines",
        "\x1b]0;owned\x07\x1b[2J",
        "<img src=x onerror=alert(1)>",
        "{x} $HOME `id`",
        "日本語 👩‍👩‍👧 e\u0301",
        "\u202eevil",
        "# not a comment",
        "x" * 1_000_000,
    ]
    listed = len(notebook.command("list")["checkpoints"])
    (shown,) = notebook.run("%timeline --all").of_type("display_data")
    text, html = (shown["content"]["data"][kind] for kind in ("text/plain", "text/html"))
    assert len(text.splitlines()) == listed
    for bad in ("\x1b", "\x07", "\u202e"):
        assert bad not in text and bad not in html
    assert "<img" not in html
