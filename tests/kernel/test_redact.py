"""A secret that got into checkpoints is taken out of all that the store keeps of them."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_timetravel.redaction.needle import REDACTED, Needle
from tests.conftest import ROOT
from tests.exchange.conftest import call, end
from tests.exhaustive import more
from tests.kernel.durable_world import durable, image

sys.path.insert(0, str(ROOT / "tests" / "store"))
from plain_finder import found_in

SECRET = "TTSECRET-" + "4f9a1c" * 4
FORMS = (SECRET.encode(), SECRET.encode("utf-16-le"), SECRET.encode("utf-32-le"))
FIRST = """\
import os
from pathlib import Path
tok = 'TTSECRET-' + '4f9a1c' * 4
os.environ['API_KEY'] = tok
open('.env', 'w').write('K=' + tok)
(Path({outside!r}) / 'cfg').write_text('x' * 70000 + tok)
x = 1; other = [1, 2]; holder = {{'deep': [tok * 500]}}; together = holder['deep']
tok
"""


@pytest.fixture
def outside() -> Iterator[Path]:
    """A directory below the home, which a session covers (what lies in /var/tmp is the host's)."""
    with tempfile.TemporaryDirectory(prefix="tt-redact-", dir=Path.home()) as path:
        yield Path(path)


def leave(start_notebook: Callable[..., Any], document: dict[str, Any], outside: Path) -> bool:
    """Four checkpoints: the secret is in #1 and #2, its source in #3; whether /var is covered."""
    notebook = start_notebook(**document)
    covered = bool(notebook.command("status")["environment"]["covered"])
    notebook.run(FIRST.format(outside=str(outside)))
    assert durable(notebook, 1)["state"] == "ready"
    image(notebook, 1)
    notebook.run("y = 2")
    assert durable(notebook, 2)["state"] == "ready"
    cell = f"z = 3  # {SECRET}\n'{SECRET[:20]}' + 'x'"
    notebook.run(cell)
    assert durable(notebook, 3)["state"] == "ready"
    cleared = "tok = holder = together = None; os.environ.pop('API_KEY'); os.remove('.env'); z = 4"
    notebook.run(cleared)
    notebook.run("%checkpoint --label last")
    assert durable(notebook, notebook.head()["number"])["state"] == "ready"
    document_cell = {"cell_type": "code", "id": "a", "source": cell, "metadata": {}, "outputs": []}
    head = notebook.command("get", checkpoint=3)["checkpoint"]["id"]
    kept = notebook.command(
        "keep_document",
        cells=[document_cell],
        documents=[{"checkpoint": head, "cells": [{"cell": 0}]}],
    )
    assert kept["kept"]
    end(notebook)
    return covered


def redact(work: Path, store: Path, *words: str, status: int = 0) -> dict[str, Any]:
    """``jupyter timetravel redact``, as a program sees it."""
    told = call("redact", work / "n.ipynb", *words, "--json", store=store, status=status)
    assert SECRET not in told
    answer: dict[str, Any] = json.loads(told)
    return answer


def test_a_text_is_in_no_checkpoint_any_more(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path, outside: Path
) -> None:
    work, store, secret = document["cwd"], tmp_path / "store", tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    covered = leave(start_notebook, document, outside)
    assert found_in(store / "namespaces", *FORMS) and found_in(store / "blobs", *FORMS)
    before = {f: f.read_bytes() for f in store.rglob("*") if f.is_file() and f.suffix != ".lock"}

    told = redact(work, store, "--text-from", str(secret), "--dry-run")
    unchanged = {f: f.read_bytes() for f in before if "sqlite" not in f.name}
    assert unchanged == {f: data for f, data in before.items() if "sqlite" not in f.name}
    (session,) = told["sessions"]
    where = {one["what"]: one["checkpoints"] for one in session["found"]}
    assert where["variable tok"] == [1, 2, 3]
    assert where["variable holder"] == where["variable together"] == [1, 2, 3]
    assert where["file .env"] == [1, 2, 3]
    assert where["settings of the session (environment)"] == [1, 2, 3]
    assert where["the list of inputs (In)"][0] == 3
    assert where["the notebook as it was"] == [3]
    assert 3 in where["the cells that ran"] and "Out[1]" in where
    if covered:
        assert f"file {outside}/cfg" in where
    assert 1 in where["the exact process, whose memory may hold it"]
    assert not session["unread"] and told["not_reached"]

    refused = call("redact", work / "n.ipynb", "--text-from", secret, store=store, status=4)
    assert "--yes" in refused and SECRET not in refused
    redact(work, store, "--text-from", str(secret), "--yes")
    assert found_in(store, *FORMS) == []
    assert "all is well" in call("check", store=store)
    again = redact(work, store, "--text-from", str(secret), "--yes")
    assert again["sessions"] == []

    second = start_notebook(**document)
    (work / ".env").write_text("mine")
    second.run("%checkpoint --label mine")
    assert "restored" in second.run("%restore 2").out
    assert second.run("print(x, other, y, os.environ['API_KEY'])").out == "1 [1, 2] 2 [redacted]"
    assert second.run("print('tok' in globals(), 'holder' in globals())").out == "False False"
    assert (work / ".env").read_text() == "mine"
    record = second.command("get", checkpoint=2)["checkpoint"]
    lost = {n["subject"] for c in record["captures"] for n in c["not_captured"]}
    assert {"tok", "holder", "together", ".env"} <= lost
    second.run("%restore last")
    assert second.run("print(z, 'redacted' in In[3])").out == "4 True"


def test_a_variable_and_a_file_by_their_names(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path, outside: Path
) -> None:
    work, store = document["cwd"], tmp_path / "store"
    leave(start_notebook, document, outside)
    told = redact(
        work, store, "--variable", "holder", "--file", str(work / ".env"), "--yes"
    )  # fmt: skip
    (session,) = told["sessions"]
    where = {one["what"]: one["checkpoints"] for one in session["found"]}
    assert where["variable together (it shared objects with holder)"] == [1, 2, 3]
    assert where["file .env"] == [1, 2, 3]
    assert session["mentions"] == [1, 4]
    assert not (store / "images").exists() or not list((store / "images").glob("*/manifest"))
    second = start_notebook(**document)
    assert "restored" in second.run("%restore 2").out
    assert second.run("print(tok[:8], x, 'holder' in globals())").out == "TTSECRET 1 False"
    assert not (work / ".env").exists()


def test_a_session_that_runs_and_words_that_mean_nothing_are_refused(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path
) -> None:
    work, store, secret = document["cwd"], tmp_path / "store", tmp_path / "secret"
    notebook = start_notebook(**document)
    notebook.run("a_secret = 'TTSECRET-abc'")
    notebook.head()
    name = work / "n.ipynb"
    told = call("redact", name, "--variable", "a_secret", "--yes", store=store, status=1)
    assert "A kernel runs" in told and "Nothing was done" in told
    assert "Nothing was done" in call("redact", name, store=store, status=1)
    secret.write_text("abc")
    for empty in ("--file", "--variable"):
        told = call("redact", name, empty, "", "--yes", store=store, status=1)
        assert "has no name. Nothing was done" in told
    short = call("redact", name, "--text-from", secret, "--dry-run", store=store, status=1)
    assert "fewer than 6" in short
    assert "no terminal" in short or "none" in call("redact", name, "--text", store=store, status=1)
    assert notebook.run("print(a_secret)").out == "TTSECRET-abc"
    assert os.path.exists(store)


NAMES = """\
import os
from pathlib import Path
there = Path({outside!r})
(there / 'dir-{secret}' / 'sub').mkdir(parents=True)
(there / 'dir-{secret}' / 'sub' / 'file').write_text('x')
(there / 'kept').write_text('kept')
for file in (there / 'kept', there):
    try:
        os.setxattr(file, 'user.note', b'{secret}')
    except OSError:
        print('no attributes')
os.mkdir('dir-{secret}'); open('file-{secret}', 'w').close(); open('kept', 'w').write('kept')
x = 1
"""


def test_names_of_files_attributes_and_first_lines(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path, outside: Path
) -> None:
    work, store, secret = document["cwd"], tmp_path / "store", tmp_path / "secret"
    notebook = start_notebook(**document)
    covered = bool(notebook.command("status")["environment"]["covered"])
    notebook.run(NAMES.format(outside=str(outside), secret=SECRET))
    assert durable(notebook, 1)["state"] == "ready"
    notebook.run(f"key = '''{SECRET}\nand a second line'''")
    assert durable(notebook, 2)["state"] == "ready"
    end(notebook)
    secret.write_text(SECRET)
    lines = tmp_path / "lines"
    lines.write_text(f"{SECRET}\nand a second line")

    # a text of two lines: its first one is in the line by which the checkpoint is listed
    redact(work, store, "--text-from", str(lines), "--yes")
    listed = json.loads(call("list", work / "n.ipynb", "--json", store=store))["checkpoints"]
    assert [one["code"] for one in listed if one["number"] == 2] == ["key = '''[redacted]"]

    told = redact(work, store, "--text-from", str(secret), "--dry-run")
    assert "file dir-[redacted]" in {one["what"] for one in told["sessions"][0]["found"]}
    redact(work, store, "--text-from", str(secret), "--yes")
    assert found_in(store, *FORMS) == []
    attributes = [
        os.getxattr(path, name, follow_symlinks=False)
        for path in store.glob("environments/*/layers/*/files/**/*")
        for name in os.listxattr(path, follow_symlinks=False)
    ]
    assert not any(SECRET.encode() in value for value in attributes)
    assert redact(work, store, "--text-from", str(secret), "--yes")["sessions"] == []

    second = start_notebook(**document)
    assert "restored" in second.run("%restore 1").out
    shown = second.run(
        "print(x, os.path.exists('kept') and open('kept').read(), (there / 'kept').read_text())"
        if covered
        else "print(x, open('kept').read(), 'kept')"
    )
    assert shown.out == "1 kept kept"


@pytest.mark.parametrize("word", ["source", *more("stacks", "outcome")])
def test_a_word_of_the_formats_takes_nothing_else_along(
    start_notebook: Callable[..., Any],
    document: dict[str, Any],
    tmp_path: Path,
    outside: Path,
    word: str,
) -> None:
    work, store, text = document["cwd"], tmp_path / "store", tmp_path / "text"
    notebook = start_notebook(**document)
    notebook.run(
        f"from pathlib import Path\nthere = Path({str(outside)!r})\n"
        f"(there / 'kept').write_text('kept'); x = 1; bad = 'the {word} code'"
    )
    assert durable(notebook, 1)["state"] == "ready"
    notebook.run("(there / 'kept').write_text('other'); x = 2")
    assert durable(notebook, 2)["state"] == "ready"
    end(notebook)
    text.write_text(word)
    redact(work, store, "--text-from", str(text), "--yes")
    second = start_notebook(**document)
    assert "restored" in second.run("%restore 1").out
    assert second.run("print(x, (there / 'kept').read_text(), 'bad' in dir())").out == (
        "1 kept False"
    )


def test_a_result_that_was_cut_within_a_secret() -> None:
    needle = Needle(texts=(SECRET,))
    cut = "x" * 20 + SECRET[:12]
    assert needle.cleaned(cut) == cut
    assert needle.cleaned(cut, is_cut=True) == "x" * 20 + REDACTED
    assert needle.cleaned(f"{SECRET} {SECRET[:12]}", is_cut=True) == f"{REDACTED} {REDACTED}"


def test_digits_within_a_name_of_content_stay() -> None:
    needle = Needle(texts=("123456",))
    details = {"123456": "of 123456", "fresh": ["ab123456ef"]}
    assert needle.cleaned_fields(details) == {"123456": f"of {REDACTED}", "fresh": ["ab123456ef"]}
