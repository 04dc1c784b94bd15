"""Case store-08: content of a file is damaged in the store; all else can be brought back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernel_runtime.store.digests import digest_of
from tests.exchange.conftest import call, end
from tests.exhaustive import more

NAMES = "abcdef"


def harmed(store: Path, harm: str) -> Path:
    """The blob that holds the content of ``c``, which is damaged by now."""
    digest = digest_of(b"c" * 65536)
    blob = store / "blobs" / digest[:2] / digest
    data = blob.read_bytes()
    if harm == "flip":
        blob.write_bytes(data[:9] + b"X" + data[10:])
    elif harm == "cut":
        blob.write_bytes(data[:100])
    elif harm == "delete":
        blob.unlink()
    else:
        blob.chmod(0)
    return blob


@pytest.mark.parametrize("harm", ["flip", "delete", *more("cut", "close")])
def test_store_08_the_rest_comes_back_on_request(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path, harm: str
) -> None:
    work, store = document["cwd"], tmp_path / "store"
    notebook = start_notebook(**document)
    notebook.run("for n in 'abcdef': _ = open(n, 'w').write(n * 100_000)\nz = 1")
    notebook.run("%checkpoint --label six")
    notebook.run("for n in 'abcdef': _ = open(n, 'w').write('new')\nz = 2")
    notebook.head()
    harmed(store, harm)

    told = str(notebook.run("%restore six", ok=False).error)
    assert "c: " in told and "--partial" in told, told
    assert notebook.run("print(z, [open(n).read() for n in 'abcdef'])").out == f"2 {['new'] * 6}"

    done = notebook.run("%restore six --partial").out
    assert "c stays as it is" in done, done
    told = notebook.run("print(z, [len(open(n).read()) for n in 'abcdef'])").out
    assert told == "1 [100000, 100000, 3, 100000, 100000, 100000]"
    assert (work / "c").read_text() == "new"
    call("check", store=store, status=1)

    notebook.run("_ = open('c', 'w').write('c' * 100_000)")
    notebook.run("%checkpoint --label healed")
    for label in ("healed", "six"):
        notebook.run("_ = open('c', 'w').write('other')")
        assert "stays as it is" not in notebook.run(f"%restore {label}").out
        assert (work / "c").read_text() == "c" * 100_000


def test_store_08_without_a_kernel(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path
) -> None:
    work, store = document["cwd"], tmp_path / "store"
    notebook = start_notebook(**document)
    notebook.run("for n in 'abcdef': _ = open(n, 'w').write(n * 100_000)")
    notebook.run("%checkpoint --label six")
    end(notebook)
    for name in NAMES:
        (work / name).write_text("new")
    for harm in ("flip", "delete"):
        harmed(store, harm)
        told = call("restore", work / "n.ipynb", "six", store=store, status=1)
        assert "c: " in told and "--partial" in told
        assert {(work / name).read_text() for name in NAMES} == {"new"}
    told = call("restore", work / "n.ipynb", "six", "--partial", store=store)
    assert "c stays as it is" in told
    assert [len((work / name).read_text()) for name in NAMES] == [100_000] * 2 + [3] + [100_000] * 3
