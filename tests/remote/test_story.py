"""Whole stories with real kernels: cases remote-01, remote-02 and remote-07."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernel_runtime import machine
from kernel_runtime.store.database import open_store
from kernel_runtime.store.digests import digest_of
from kernel_runtime.store.images import ImageStore
from kernel_runtime.store.keys import Keys
from tests.conftest import Notebook, open_up
from tests.exchange.conftest import call, end, write_notebook
from tests.remote.conftest import Command, Remote

Start = Callable[..., Notebook]


@pytest.fixture
def tt(tmp_path: Path) -> Command:
    """The command line of the test's user."""

    def run(*words: Any, **more: Any) -> str:
        more.setdefault("store", tmp_path / "store")
        return call(*words, **{"JUPYTER_TIMETRAVEL_KEYS": str(tmp_path / "keys"), **more})

    return run


def on(start: Start, path: Path, *arguments: str) -> Notebook:
    """A kernel for a notebook, as a server starts it."""
    return start(*arguments, cwd=path.parent, env={"JPY_SESSION_NAME": str(path)})


def written(notebook: Notebook, number: int, engine: str = "dill") -> None:
    """Wait until a checkpoint's capture is on the disk."""
    end = time.monotonic() + 110  # written at low priority
    while True:
        (record,) = [c for c in notebook.command("list")["checkpoints"] if c["number"] == number]
        states = {c["engine"]: c["state"] for c in record["captures"]}
        if states.get(engine) == "ready":
            return
        assert time.monotonic() < end, states
        time.sleep(0.1)


def test_push_lose_everything_pull_and_resume(
    start_notebook: Start, remote: Remote, tt: Command, tmp_path: Path
) -> None:
    path = tmp_path / "P" / "a.ipynb"
    write_notebook(path, "x = 1")
    kernel = on(start_notebook, path)
    kernel.run("import json; x = {'a': [1, 2, 3]}; open('f', 'w').write('mine')")
    kernel.run("def f(n):\n    return n + len(x['a'])")
    kernel.run("%checkpoint --label end")
    number = kernel.head()["number"]
    written(kernel, number)
    end(kernel)
    tt("push", remote.url, path, **remote.env)

    open_up(tmp_path / "store")
    shutil.rmtree(tmp_path / "store")
    shutil.rmtree(path.parent)

    path = tmp_path / "elsewhere" / "b.ipynb"
    write_notebook(path)
    assert "restorable here" in tt("pull", remote.url, "--check", **remote.env)
    tt("pull", remote.url, "--as", path, **remote.env)
    cells = [one for one in _exported(tt, path, tmp_path) if "def f" in one]
    assert cells, "the cells came along"
    tt("restore", path, "end")
    assert (path.parent / "f").read_text() == "mine"
    kernel = on(start_notebook, path)
    kernel.run("%restore end")
    assert kernel.run("print(f(1), x, json.dumps(x))").out == "4 {'a': [1, 2, 3]} " + json.dumps(
        {"a": [1, 2, 3]}
    )


def _exported(tt: Command, path: Path, tmp_path: Path) -> list[str]:
    target = tmp_path / "clean.ipynb"
    tt("export-notebook", path, target)
    return ["".join(cell["source"]) for cell in json.loads(target.read_text())["cells"]]


def test_nothing_or_clearly_part(
    start_notebook: Start, directory: Remote, tt: Command, tmp_path: Path
) -> None:
    """Case remote-07."""
    path = tmp_path / "A" / "a.ipynb"
    write_notebook(path)
    packages = tmp_path / "packages"  # a machine's own: outside of what travels
    packages.mkdir()
    (packages / "onlyona.py").write_text("class Q:\n    pass\n")
    kernel = on(start_notebook, path)
    kernel.run(f"import sys; sys.path.append({str(packages)!r})")
    kernel.run("import onlyona; a = 1; q = onlyona.Q(); both = {'q': q, 'n': 5}; z = 100")
    kernel.run("%checkpoint --label C1")
    written(kernel, kernel.head()["number"])
    end(kernel)
    tt("push", directory.url, path)
    (packages / "onlyona.py").rename(tmp_path / "kept")
    shutil.rmtree(packages / "__pycache__", ignore_errors=True)

    path = tmp_path / "B" / "b.ipynb"
    write_notebook(path)
    store = tmp_path / "store"
    open_up(store)
    shutil.rmtree(store)
    tt("pull", directory.url, "--as", path)
    kernel = on(start_notebook, path)
    kernel.run("a = -1; z = -100; mine = 'B'")
    pid = kernel.run("import os; print(os.getpid())").out
    refused = kernel.run("%restore C1", ok=False)
    told = refused.error + refused.text("stderr") + refused.text()
    assert "onlyona" in told and "q: " in told and "both: " in told and "--partial" in told
    assert "You are back where you were" in told
    assert kernel.run("print(a, z, mine, os.getpid())").out == f"-1 -100 B {pid}"
    assert kernel.run("print('q' in dir(), 'both' in dir())").out == "False False"

    told = kernel.run("%restore C1 --partial").text()
    assert "not brought back: q" in told and "not brought back: both" in told
    assert kernel.run("print(a, z, 'mine' in dir(), 'q' in dir())").out == "1 100 False False"
    (tmp_path / "kept").rename(packages / "onlyona.py")
    kernel.run("%restore C1")
    assert kernel.run("print(both['q'] is q, both['n'])").out == "True 5"


def test_two_clones_share_no_secret(
    start_notebook: Start, directory: Remote, tt: Command, tmp_path: Path
) -> None:
    """Case remote-04: seeded generators go on alike, what is to be unique is."""
    path = tmp_path / "A" / "a.ipynb"
    write_notebook(path)
    kernel = on(start_notebook, path)
    kernel.run(
        "import random, ssl, tempfile, uuid, secrets, numpy as np\n"
        "random.seed(1); np.random.seed(1); rng = np.random.default_rng(5)\n"
        "_ = ssl.RAND_bytes(4); _ = next(tempfile._get_candidate_names()); _ = random.random()"
    )
    kernel.run("%checkpoint --label C1")
    written(kernel, kernel.head()["number"])
    undisturbed = kernel.run("print(random.random(), float(np.random.rand()), float(rng.random()))")
    end(kernel)
    tt("push", directory.url, path, "C1")
    seen = []
    for name in "KL":
        path = tmp_path / name / "a.ipynb"
        write_notebook(path)
        tt("pull", directory.url, "--as", path)
        seen.append(on(start_notebook, path))
        seen[-1].run("%restore C1")
    unique = (
        "print(ssl.RAND_bytes(16).hex(), next(tempfile._get_candidate_names()), "
        "uuid.uuid4().hex, secrets.token_hex(8))"
    )
    first, second = (kernel.run(unique).out.split() for kernel in seen)
    assert all(a != b for a, b in zip(first, second, strict=True))
    seeded = "print(random.random(), float(np.random.rand()), float(rng.random()))"
    assert {kernel.run(seeded).out for kernel in seen} == {undisturbed.out}


def test_a_machine_that_lacks_a_feature(
    start_notebook: Start, directory: Remote, tt: Command, tmp_path: Path
) -> None:
    """Case remote-01, with a feature that no processor has written into the image."""
    path = tmp_path / "A" / "a.ipynb"
    write_notebook(path)
    kernel = on(start_notebook, path)
    kernel.run("import numpy as np; a = np.arange(100_000, dtype='f4'); r = float((a * 2).sum())")
    kernel.run("name = 'from-big-machine'")
    kernel.run("%checkpoint --label C2")
    written(kernel, kernel.head()["number"])
    written(kernel, kernel.head()["number"], "image")
    end(kernel)
    tt("push", directory.url, path, "C2", "--images")
    told = tt("pull", directory.url, "--check")
    assert "process: yes" in told and "variables: yes" in told
    other = tmp_path / "other"
    path = tmp_path / "B" / "b.ipynb"
    write_notebook(path)
    tt("pull", directory.url, "--as", path, store=other)
    told = tt("show", path, "C2", store=other)
    assert "process: yes" in told, told
    keys = tmp_path / "keys"
    for made_on, why in (
        ({"kernel": "1.2.3"}, f"the kernel is {HERE['kernel']}, not 1.2.3"),
        ({"build": "#0"}, f"the kernel {HERE['kernel']} is another build ({HERE['build']})"),
        ({"architecture": "vax"}, f"the processor is {HERE['architecture']}, not vax"),
    ):
        of_machine(other, keys, {**HERE, **made_on})
        told = tt("show", path, "C2", store=other)
        assert f"process: no, {why}" in told and "variables: yes" in told, told
    of_machine(other, keys, {**HERE, "features": [*HERE["features"], "avx1024z"]})
    told = tt("show", path, "C2", store=other)
    assert "process: no, the processor has no avx1024z" in told and "variables: yes" in told
    kernel = start_notebook(
        cwd=path.parent,
        env={"JPY_SESSION_NAME": str(path), "JUPYTER_TIMETRAVEL_STORE": str(other)},
    )
    told = kernel.run("%restore C2").text()
    assert "the processor has no avx1024z" in told and "a fresh one has the variables" in told
    assert kernel.run("print(name, r == float((a * 2).sum()))").out == "from-big-machine True"
    kernel.run("name = 'here'")
    told = kernel.run("%restore C2 --force").text()  # that ends a cell, and starts no such process
    assert "the processor has no avx1024z" in told and "a fresh one has the variables" in told
    assert kernel.run("print(name)").out == "from-big-machine"
    end(kernel)
    of_machine(other, keys, {**HERE, "features": HERE["features"][1:]})
    assert "process: yes" in tt("show", path, "C2", store=other), "it is here alone: no reason"
    kernel = start_notebook(
        cwd=path.parent,
        env={"JPY_SESSION_NAME": str(path), "JUPYTER_TIMETRAVEL_STORE": str(other)},
    )
    told = kernel.run("%restore C2").text()
    assert "processor" not in told and "a fresh one has the variables" not in told
    assert kernel.run("print(name, r == float((a * 2).sum()))").out == "from-big-machine True"


HERE = machine.here()


def of_machine(store: Path, keys: Path, made_on: dict[str, Any]) -> None:
    """Let the image in a store say what machine it is of, as its maker would have written it."""
    images = ImageStore(store, Keys(keys))
    with contextlib.closing(open_store(store, Keys(keys))) as opened:
        (info,) = opened.timelines()
        timeline = opened.look_at(info.id)
        checkpoint = timeline.resolve("C2")
        capture = checkpoint.capture("process", engine="image")
        assert capture is not None and capture.ref is not None
        manifest = images.manifest(capture.ref)
        manifest["details"]["machine"] = made_on
        body = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
        signature = Keys(keys).sign("process image 1", body).encode()
        ref = digest_of(body)
        (images.path / capture.ref / "manifest").write_bytes(signature + b"\n" + body)
        (images.path / capture.ref).rename(images.path / ref)
        captures = tuple(
            replace(c, ref=ref) if c.ref == capture.ref else c for c in checkpoint.captures
        )
        opened.save(timeline.state, [timeline.replace(checkpoint.id, captures=captures)])


@pytest.mark.slow
def test_the_exact_process_comes_back(
    start_notebook: Start, directory: Remote, tt: Command, tmp_path: Path
) -> None:
    path = tmp_path / "A" / "a.ipynb"
    write_notebook(path)
    kernel = on(start_notebook, path)
    kernel.run("def count():\n    n = 0\n    while True:\n        n += 1\n        yield n")
    kernel.run("g = count(); next(g); next(g); big = bytearray(b'x' * 10_000_000)")
    kernel.run("%checkpoint --label C1")
    written(kernel, kernel.head()["number"], "image")
    end(kernel)
    tt("push", directory.url, path, "--images")
    store = tmp_path / "store"
    open_up(store)
    shutil.rmtree(store)
    tt("pull", directory.url, "--as", path)
    kernel = on(start_notebook, path)
    kernel.run("%restore C1")
    assert kernel.run("print(next(g), len(big))").out == "3 10000000", "a generator goes on"
    tt("check")
