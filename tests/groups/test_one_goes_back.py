"""group-01: two kernels in one workspace, and only one of them goes back."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Notebook
from tests.groups.conftest import ran

sys.path.insert(0, str(ROOT / "tests" / "store"))
from plain_finder import found_in


@pytest.fixture
def pair(on: Callable[..., Notebook], tt: Callable[..., Any], folder: Path) -> Any:
    """A and B as the case has them, after the cells that follow G1."""
    a, b = on("A"), on("B")
    ran(a, 'open("shared.csv","w").write("1\\n"); open("a.txt","w").write("a1"); va = 1')
    ran(b, 'open("b.txt","w").write("b1"); vb = 1')
    tt("group", "create", "g", folder / "A.ipynb", folder / "B.ipynb")
    made = tt("checkpoint", "--group", "g", "-m", "both at one")
    assert made["record"]["title"] == "G1"
    assert made["record"]["complete"]
    ran(
        a,
        'open("shared.csv","a").write("2-by-A\\n"); open("a2.txt","w").write("a2"); va = 2; '
        "import os; pid = os.getpid()",
    )
    ran(b, 'open("b.txt","w").write("b2"); vb = 2')
    ran(b, 'open("shared.csv","a").write("3-by-B\\n"); vb = 3')
    return a, b


def test_the_case(pair: Any, tt: Callable[..., Any], folder: Path) -> None:
    a, b = pair
    shared = folder / "shared.csv"
    head = a.head()
    # only B
    one = tt("restore", "--group", "g", "G1", "--member", "B")
    assert b.run("print(vb)").out == "1"
    told = a.run("print(va, os.getpid() == pid)")
    assert told.out == "2 True"
    at = f"the group is mixed: A at #{head['number']}, B at G1"
    assert f"B was restored to G1 (group g); {at}" in told.text("stderr")
    assert (folder / "a2.txt").read_text() == "a2"
    assert (folder / "b.txt").read_text() == "b1"
    assert shared.read_text() == "1\n2-by-A\n3-by-B\n"
    assert one["conflicts"] == [{"path": str(shared), "writers": ["A", "B"]}]
    assert f"CONFLICT {shared}" in one["text"]
    shown = tt("group", "show", "g")
    assert shown["mixed"]
    assert "B alone was restored to G1" in shown["text"]
    # the whole group
    whole = tt("restore", "--group", "g", "G1")
    assert a.run("print(va)").out == "1"
    assert b.run("print(vb)").out == "1"
    assert shared.read_text() == "1\n"
    assert not (folder / "a2.txt").exists()
    assert (folder / "b.txt").read_text() == "b1"
    assert not tt("list", "--group", "g")["mixed"]
    # and back
    comment = whole["safety"]["comment"]
    assert comment.startswith("before the restore")
    tt("restore", "--group", "g", comment)
    assert a.run("print(va)").out == "2"
    assert b.run("print(vb)").out == "1"
    assert shared.read_text() == "1\n2-by-A\n3-by-B\n"
    assert (folder / "a2.txt").read_text() == "a2"
    assert (folder / "b.txt").read_text() == "b1"


def test_members_are_shown_where_they_are(pair: Any, tt: Callable[..., Any]) -> None:
    a, _ = pair
    tt("restore", "--group", "g", "-1", "--member", "B")
    at = {one["name"]: one["at"] for one in tt("group", "show", "g")["members"]}
    assert at == {"A": f"#{a.head()['number']}", "B": "G1"}


def test_one_that_went_back_alone_is_undone(
    pair: Any, tt: Callable[..., Any], folder: Path
) -> None:
    _, b = pair
    tt("restore", "--group", "g", "G1", "--member", "B")
    assert (folder / "b.txt").read_text() == "b1"
    tt("restore", "--group", "g", "--undo", "--member", "B")
    assert b.run("print(vb)").out == "3"
    assert (folder / "b.txt").read_text() == "b2"
    assert (folder / "a2.txt").read_text() == "a2"
    assert not tt("group", "show", "g")["mixed"]


def test_a_dry_run_changes_nothing(pair: Any, tt: Callable[..., Any], folder: Path) -> None:
    a, b = pair
    heads = [one.head()["number"] for one in pair]
    told = tt("restore", "--group", "g", "G1", "--dry-run")
    assert set(told["members"]) == {"A", "B"}
    assert told["safety"] is None
    assert [one.head()["number"] for one in pair] == heads
    one = tt("restore", "--group", "g", "G1", "--member", "B", "--dry-run")
    assert [Path(c["path"]).name for c in one["conflicts"]] == ["shared.csv"]
    assert [c["path"] for c in one["members"]["B"]["files"]] == ["b.txt"]
    assert a.run("print(va)").out == "2"
    assert b.run("print(vb)").out == "3"
    assert (folder / "b.txt").read_text() == "b2"


def test_undo_of_the_whole_group(pair: Any, tt: Callable[..., Any], folder: Path) -> None:
    a, b = pair
    tt("restore", "--group", "g", "both at one")
    assert not (folder / "a2.txt").exists()
    tt("restore", "--group", "g", "--undo")
    assert a.run("print(va)").out == "2"
    assert b.run("print(vb)").out == "3"
    assert (folder / "shared.csv").read_text() == "1\n2-by-A\n3-by-B\n"
    assert (folder / "a2.txt").read_text() == "a2"


def test_a_running_cell_of_another_member_may_have_written_anything(
    pair: Any, tt: Callable[..., Any], folder: Path
) -> None:
    a = pair[0]
    running = a.send("import time\nopen('b.txt', 'a').write('+A')\ntime.sleep(3600)")
    while (folder / "b.txt").read_text() != "b2+A":
        a.settle(0.1)
    told = tt("restore", "--group", "g", "G1", "--member", "B")
    assert {"path": str(folder / "b.txt"), "writers": ["A", "B"]} in told["conflicts"]
    assert (folder / "b.txt").read_text() == "b2+A"
    a.interrupt()
    assert "KeyboardInterrupt" in a.wait(running).error


def test_what_somebody_outside_wrote_stays(pair: Any, tt: Callable[..., Any], folder: Path) -> None:
    (folder / "outside.txt").write_text("mine")
    told = tt("restore", "--group", "g", "G1", "--member", "B")
    assert (folder / "outside.txt").read_text() == "mine"
    assert {"path": str(folder / "outside.txt"), "writers": []} in told["conflicts"]
    assert "somebody outside of the group" in told["text"]


def test_notebooks_stay_whosever_they_are(pair: Any, tt: Callable[..., Any], folder: Path) -> None:
    """A front end saves them, while this member or another one runs a cell."""
    _, b = pair
    books = [folder / "A.ipynb", folder / "B.ipynb", folder / "none's.ipynb"]
    shutil.copy(books[0], books[2])
    tt("checkpoint", "--group", "g", "-m", "with notebooks")
    saved = [book.read_text() + " " * 8 for book in books]
    for book, text in zip(books, saved):
        book.write_text(text)
    ran(b, 'open("b.txt", "w").write("b3")')
    told = tt("restore", "--group", "g", "with notebooks", "--member", "B")
    assert told["conflicts"] == []
    assert (folder / "b.txt").read_text() == "b2"
    assert [book.read_text() for book in books] == saved
    tt("restore", "--group", "g", "G1")
    assert not (folder / "a2.txt").exists()
    assert [book.read_text() for book in books] == saved


def test_what_was_noted_of_a_member_goes_with_it(
    pair: Any, tt: Callable[..., Any], on: Callable[..., Notebook], folder: Path
) -> None:
    tt("restore", "--group", "g", "G1", "--member", "B")
    tt("group", "remove", "g", "B")
    assert not tt("group", "show", "g")["mixed"]
    told = tt("restore", "--group", "g", "G1", status=1)
    assert "B is no member any more, and G1 holds it" in told
    assert "group add" in told
    other = on("C")
    ran(other, "vc = 1")
    tt("group", "add", "g", f"B={folder / 'C.ipynb'}")
    told = tt("restore", "--group", "g", "--undo", "--member", "B", status=1)
    assert "nothing to undo" in told


def test_who_was_no_member_yet_is_told_to_stay(
    pair: Any, tt: Callable[..., Any], on: Callable[..., Notebook], folder: Path
) -> None:
    other = on("C")
    ran(other, "vc = 1")
    tt("group", "add", "g", folder / "C.ipynb")
    ran(other, "vc = 2")
    told = tt("restore", "--group", "g", "G1", "--dry-run")
    assert "A, B would go back to G1" in told["text"]
    # notebooks stay in every restore of a group, so a preview does not name them
    assert not any(c["path"].endswith(".ipynb") for c in told["members"]["A"]["files"])
    told = tt("restore", "--group", "g", "G1")
    assert "A, B went back to G1" in told["text"]
    assert "as they are: C; G1 does not hold them" in told["text"]
    assert other.run("print(vc)").out == "2"


def test_a_secret_in_what_is_noted_of_a_group(
    pair: Any, tt: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    secret = "hunter2-" + "x" * 8
    tt("checkpoint", "--group", "g", "-m", f"with {secret} in it")
    for notebook in pair:
        notebook.client.stop_channels()
        notebook.manager.shutdown_kernel()
    (tmp_path / "secret").write_text(secret)
    words = ("redact", "--text-from", tmp_path / "secret")
    assert tt(*words, "--dry-run")["groups"] == [{"group": "g", "records": ["G2"]}]
    tt(*words, "--yes")
    assert tt("list", "--group", "g")["records"][-1]["comment"] == "with [redacted] in it"
    assert found_in(tmp_path / "store", secret.encode()) == []


def test_a_notebook_whose_name_is_none_for_a_member(
    on: Callable[..., Notebook], tt: Callable[..., Any], folder: Path
) -> None:
    ran(on("Untitled (1)"), "x = 1")
    book = folder / "Untitled (1).ipynb"
    told = tt("group", "create", "g", book, status=1)
    assert "'Untitled (1)' cannot be the name of a member" in told
    assert "NAME=NOTEBOOK" in told
    assert tt("group", "create", "g", f"one={book}")["members"][0]["name"] == "one"


def test_the_directory_that_another_one_made_stays(
    pair: Any, tt: Callable[..., Any], folder: Path
) -> None:
    a, b = pair
    ran(a, "os.mkdir('results')")
    ran(b, "open('results/b.csv', 'w').write('b')")
    tt("restore", "--group", "g", "G1", "--member", "B")
    assert list((folder / "results").iterdir()) == []


def test_it_is_taken_back_though_others_ran_since(
    pair: Any, tt: Callable[..., Any], folder: Path
) -> None:
    a, b = pair
    ran(b, "import os; os.mkdir('mine'); open('mine/x', 'w').write('x'); vb = 4")
    tt("restore", "--group", "g", "G1", "--member", "B")
    assert (folder / "b.txt").read_text() == "b1"
    assert not (folder / "mine").exists()
    ran(a, "open('a2.txt', 'w').write('a3')")
    ran(b, "vb = 5")
    undone = tt("restore", "--group", "g", "--undo", "--member", "B")
    # A wrote it while B went back or after: which of the two is not known
    assert [one["path"] for one in undone["conflicts"]] == [str(folder / "a2.txt")]
    assert (folder / "b.txt").read_text() == "b2"
    assert (folder / "mine" / "x").read_text() == "x"
    assert (folder / "a2.txt").read_text() == "a3"
    assert b.run("print(vb)").out == "4"
