"""Looking into checkpoints, bringing single files, keeping the notebook as it was."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from jupyter_timetravel import Client
from kernel_runtime.errors import BadRequest, DocumentRefused, NotShown, RestoreRefused
from kernel_runtime.store.documents import DocumentStore
from kernel_runtime.store.keys import Keys
from kernel_runtime.supervisor.showing import TEXT_MOST
from tests.waiting import until


@pytest.fixture
def client(notebook):
    with Client(notebook.client) as client:
        yield client


def cell(source, *outputs):
    return {
        "cell_type": "code",
        "id": f"id-{len(source)}",
        "metadata": {},
        "execution_count": 1,
        "source": source,
        "outputs": list(outputs),
    }


def test_what_each_checkpoint_changed(notebook, client):
    notebook.cells(
        "a = 1; b = [1]; open('x.txt', 'w').write('x');",
        "b.append(2); del a; c = 3; open('x.txt', 'w').write('xx'); open('y', 'w').close();",
        "for i in range(40): globals()[f'v{i:02}'] = i",
        "import os; os.remove('y')",
    )
    found = {client.get(one.checkpoint).number: one for one in client.changes(1, 2, 3, 4)}
    assert found[1].variables.names == (("+", "a"), ("+", "b"))
    assert found[1].files.names == (("+", "x.txt"),)
    assert set(found[2].variables.names) == {("~", "b"), ("+", "c"), ("-", "a")}
    assert set(found[2].files.names) == {("~", "x.txt"), ("+", "y")}
    assert found[3].variables.count >= 40 and len(found[3].variables.names) == 12
    assert found[3].files.count == 0
    assert found[4].files.names == (("-", "y"),)
    # the state before the first cell has no parent
    assert client.changes(0) == ()
    # without the one between, the difference is from what is before it
    client.delete(3)
    (now,) = client.changes(4)
    assert now.variables.count >= 41 and now.parent == client.get(2).id


def test_a_file_as_it_was(notebook, client):
    png = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    odd = "caf\u00e9 \\ \udcff.txt"
    notebook.run(
        f"import os; open('t.txt', 'w').write('one\\ntwo\\n'); open('p.png', 'wb').write({png!r});"
        f"open({odd!r}, 'w').write('odd'); open('big.txt', 'w').write('0123456789' * 40_000);"
        "open('raw.bin', 'wb').write(bytes(range(256))); os.mkfifo('fifo'); os.mkdir('d');"
    )
    notebook.run("open('t.txt', 'w').write('one\\n2\\n'); os.remove('raw.bin')")
    old, new = client.file("t.txt", 1), client.file("t.txt")
    assert (old.text, new.text) == ("one\ntwo\n", "one\n2\n")
    assert old.mime == "text/plain" and old.size == 8 and not old.truncated
    assert client.file(str(notebook.cwd / "t.txt"), 1).text == old.text
    assert client.file("t.txt", 1, root=str(notebook.cwd)) == old
    image = client.file("p.png", 1)
    assert image.mime == "image/png" and image.data == png and image.text is None
    big = client.file("big.txt", 1)
    assert big.truncated and big.size == 400_000 and len(big.text) == TEXT_MOST
    raw = client.file("raw.bin", 1)
    assert raw.exists and raw.text is None and raw.data is None and raw.size == 256
    assert not client.file("raw.bin").exists and not client.file("d", 1).exists
    # the name as a difference tells it
    notebook.run(f"os.remove({odd!r})")
    (gone,) = [one.path for one in client.diff(2).files]
    assert client.file(gone, 2).text == "odd"
    for path in ("../secret", "/etc/../../x", "a\0b"):
        with pytest.raises(BadRequest):
            client.file(path)
    with pytest.raises(NotShown):
        client.file("fifo")
    os.symlink("/etc/passwd", notebook.cwd / "link")
    with pytest.raises(NotShown):
        client.file("link")


def test_a_file_of_the_environment(notebook, client):
    if not client.status().environment["covered"]:
        pytest.skip("the environment is not covered here")
    path = str(Path.home() / "looked-at.txt")
    notebook.run(f"open({path!r}, 'w').write('inside');")
    notebook.run(f"open({path!r}, 'w').write('inside, later');")
    assert client.file(path, 1).text == "inside"
    assert client.file(path).text == "inside, later"
    assert not client.file(path, 0).exists and not os.path.exists(path)


def test_variables_as_a_notebook_shows_them(notebook, client):
    pytest.importorskip("pandas")
    notebook.run(
        "import pandas as pd, itertools, time\n"
        "df = pd.DataFrame({'a': range(1000)}); n = 7; text = 'x' * 50_000_000\n"
        "count = itertools.count()\n"
        "class Slow:\n"
        "    def __repr__(self): time.sleep(60)\n"
        "class Bad:\n"
        "    def __repr__(self): open('written', 'w').write('x'); raise SystemExit\n"
        "slow, bad = Slow(), Bad()"
    )
    notebook.run("df.loc[3, 'a'] = -5; n = 8")
    shown = {one.name: one for one in client.show(1, "df", "n", "text", "count", "nothing")}
    assert "<table" in shown["df"].data["text/html"] and "-5" not in shown["df"].data["text/html"]
    assert shown["df"].data["text/html"].count("<tr") < 30
    assert shown["n"].data["text/plain"] == "7"
    assert len(shown["text"].data["text/plain"]) < 30_000
    assert "not there" in shown["nothing"].error
    (now,) = client.show(2, "df")
    assert "-5" in now.data["text/html"]
    assert notebook.run("print(next(count), n)").out == "0 8"  # nothing here was used
    # the user's own code may do nothing there, and may take its time
    bad, later = client.show(1, "bad", "n")
    assert not bad.data and later.data["text/plain"] == "7"
    assert not (notebook.cwd / "written").exists()
    client.config(show_timeout=3.0)
    slow, after = client.show(1, "slow", "n")
    assert "within 3 seconds" in slow.error and after.error
    assert notebook.run("print(n)").out == "8"


def test_a_figure(notebook, client):
    pytest.importorskip("matplotlib")
    notebook.run(
        "from matplotlib.figure import Figure\nf = Figure(); f.add_subplot().plot([1, 2]);"
    )
    notebook.run("f.axes[0].set_title('changed');")
    first, second = client.show(1, "f")[0], client.show(2, "f")[0]
    for one in (first, second):
        assert base64.b64decode(one.data["image/png"]).startswith(b"\x89PNG")
    assert first.data["image/png"] != second.data["image/png"]


def test_single_files_are_brought(notebook, client):
    notebook.run(
        "import os; os.makedirs('d/e'); x = 1\n"
        "for n in ('a', 'd/b', 'd/e/c', 'z'): open(n, 'w').write('old ' + n)\n"
        "os.chmod('d', 0o750)"
    )
    notebook.run(
        "import shutil; x = 2; shutil.rmtree('d'); open('a', 'w').write('new a');"
        "open('z', 'w').write('new z'); open('made', 'w').write('m');"
    )
    done = client.bring_files(1, "d/e", "a")
    assert {one.path for one in done.files} >= {"a", "d/e/c"}

    def tree():
        files = (p for p in notebook.cwd.rglob("*") if p.is_file() and not p.name.startswith("."))
        return {str(p.relative_to(notebook.cwd)): p.read_text() for p in files}

    after = {"a": "old a", "d/e/c": "old d/e/c", "z": "new z", "made": "m"}
    assert tree() == after
    assert notebook.run("print(x, open('a').read())").out == "2 old a"
    # what was not there then goes; a name is one from where the session is
    assert "made as it was" in notebook.run("%cd -q /\n%cd -q -\n%restore 1 --paths made").out
    assert tree() == {k: v for k, v in after.items() if k != "made"}
    # the safety checkpoint takes it back
    client.restore(done.safety.id, only="files")
    assert tree() == {"a": "new a", "z": "new z", "made": "m"}
    with pytest.raises(RestoreRefused, match="nothing differs"):
        client.bring_files(1, "nowhere")
    reply = notebook.run("%restore 1 --paths a --only files", ok=False).reply
    assert reply["ename"] == "UsageError" and "--paths goes with" in reply["evalue"]
    for bad in ("/etc/passwd", "../x"):
        with pytest.raises(BadRequest):
            client.bring_files(1, bad)
    with pytest.raises(BadRequest):
        client.bring_files(1)
    # a file that was not chosen is never replaced
    notebook.run("open('d', 'w').write('in the way');")
    with pytest.raises(RestoreRefused, match="not chosen"):
        client.bring_files(1, "d/b")
    assert (notebook.cwd / "d").read_text() == "in the way"
    assert notebook.run("print(x)").out == "2"


def test_the_notebook_is_kept_with_its_checkpoint(start_notebook, document, tmp_path):
    notebook = start_notebook(**document)
    notebook.cells("x = 1", "x = 2")
    stream = {"output_type": "stream", "name": "stdout", "text": "café " + "o" * 9999}
    one, two = cell("x = 1", stream), cell("x = 2 #")
    with Client(notebook.client) as client:
        ids = {record.number: record.id for record in client.list()}
        assert client.keep_document(ids[1], [one, two], trusted=True)
        assert [(c.cell, c.trusted) for c in client.document(1)] == [(one, True), (two, True)]
        assert not client.keep_document(ids[1], [two])  # the first stays
        assert not client.keep_document("f" * 32, [two])  # of no checkpoint
        with pytest.raises(DocumentRefused, match="not kept"):
            client.document(2)
        digests = [c.digest for c in client.document(1)]
        # by name: only what differs travels, and nothing is stored twice
        new, order = [cell("new")], [{"cell": digests[0], "trusted": True}, {"cell": 0}]
        asked = {"checkpoint": ids[2], "cells": [*order, {"cell": "0" * 64}]}
        told = notebook.command("keep_document", cells=new, documents=[asked])
        assert (told["kept"], told["missing"]) == ([], ["0" * 64])
        told = notebook.command("keep_document", cells=new, documents=[{**asked, "cells": order}])
        assert told["kept"] == [ids[2]] and told["missing"] == []
        found = notebook.command("document", checkpoint=2, known=digests)["cells"]
        assert [c["cell"] and c["cell"]["source"] for c in found] == [None, "new"]
        assert [c["trusted"] for c in found] == [True, False]
        for bad in ([{}], [{"checkpoint": ids[2], "cells": [{"cell": 1}]}], ["x"], [None]):
            told = notebook.refused("keep_document", cells=new, documents=bad)
            assert told["ename"] == "BadRequest"
        assert notebook.command("notebook", until=1)["notebook"]["cells"][0]["source"] == ["x = 1"]
        captures = {c.kind: c for c in client.get(1).captures}
        assert captures["document"].state == "ready" and captures["document"].bytes > 0
    blobs = tmp_path / "store" / "documents" / "blobs"
    assert sum(1 for _ in blobs.glob("*/*")) == 5  # three cells and two lists
    notebook.manager.shutdown_kernel()

    # it is there for the next kernel, and goes with its checkpoint
    again = start_notebook(**document)
    with Client(again.client) as client:
        assert [c.cell["source"] for c in client.document(1)] == ["x = 1", "x = 2 #"]
        client.delete(2)
        client.config(documents_most=0)
        again.run("x = 3")
        again.head()  # once it is made
        head = client.status().head
        assert client.keep_document(head.id, [one])
        with pytest.raises(DocumentRefused, match="make room"):
            client.document(1)
        assert client.document(head.id)[0].cell["source"] == "x = 1"
    again.manager.shutdown_kernel()
    # what no checkpoint needs is swept when a kernel starts
    third = start_notebook(**document)
    with Client(third.client) as client:
        third.run("1")
        assert client.document(head.id)[0].cell == one
    until(lambda: sum(1 for _ in blobs.glob("*/*")) == 2)


def test_half_a_surrogate_pair_can_be_sent_back(tmp_path):
    store = DocumentStore(tmp_path / "store", Keys(tmp_path / "keys"))
    with store.writing():
        digest = store.put_cell(cell("print('\ud800')"))
    assert store.cell(digest)["source"] == "print('?')"


def test_the_directory_of_a_single_file_stays(notebook):
    notebook.run("import os; open('was', 'w').write('a file')")
    notebook.head()
    notebook.run(
        "os.remove('was'); os.mkdir('was'); open('was/in', 'w').write('in'); "
        "os.mkdir('new'); [open(f'new/{one}', 'w').write(one) for one in 'ab']; "
        "os.mkdir('alone'); open('alone/a', 'w').write('a')"
    )
    notebook.head()
    assert "as it was" in notebook.run("%restore 1 --paths new/a").out
    assert "as it was" in notebook.run("%restore 1 --paths alone/a").out
    assert notebook.run("print(os.listdir('new'), os.listdir('alone'))").out == "['b'] []"
    refused = notebook.run("%restore 1 --paths was/in", ok=False).error
    assert "a directory that was not chosen is in its place" in refused
    assert notebook.run("print(open('was/in').read())").out == "in"
    assert "as they were" in notebook.run("%restore 1 --paths was").out
    assert notebook.run("print(open('was').read())").out == "a file"
