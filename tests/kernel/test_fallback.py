"""Each engine broken in each step of a restore: the next best capture is taken, nothing is lost.

What is on the disk is broken there. What is a program or a moment is broken in a copy of the
package that runs the kernel, or by a program of the same name before it on PATH. Afterwards the
unbroken program restores the same checkpoint exactly: the failure has cost nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.exhaustive import more
from tests.kernel.durable_world import changed_package, damage, durable, image, kill
from tests.session_processes import frozen_of
from tests.states.suite import WAYS

STATE = "x = [1]; y = x; it = iter(i for i in 'abc'); _ = next(it)"
VARIABLES_ONLY = "the process itself could not be brought back"
LOADER = "native/timetravel-loader"
ENDS = """
        from kernel_runtime.engines.fork import Command, ask
        await ask(Frozen(checkpoint, 0, address), Command.QUIT)
"""


@dataclass(frozen=True)
class Break:
    """One way in which one engine fails."""

    engine: str
    name: str
    said: str
    """What the restore says of the reason: a pattern."""
    files: str = ""
    """Below the store: what is removed, or altered."""
    alters: bool = False
    program: tuple[str, str] = ("", "")
    """In the package, or on PATH: the name of a program, and a script in its place."""
    source: tuple[tuple[str, str, str], ...] = ()
    """In a copy of the package: file, text, and what is put in its place."""


BREAKS = [
    Break("image", "pages missing", "pages.ttpages", "images/*/pages.ttpages"),
    Break("image", "pages damaged", "pages.ttpages", "images/*/pages.ttpages", alters=True),
    Break("image", "not authentic", "signature", "images/*/manifest", alters=True),
    Break("image", "loader killed", "loader", program=(LOADER, "kill -9 $$")),
    Break(
        "image",
        "loader hangs",
        "did not answer",
        program=(LOADER, "exec sleep 1000"),
        source=(("engines/image.py", "_PATIENCE_S: Final = 60.0", "_PATIENCE_S: Final = 2.0"),),
    ),
    Break(
        "image",
        "ends before it is woken",
        "could not be woken",
        source=(
            (
                "engines/image.py",
                "        lost = loaded.not_captured",
                f"{ENDS}        lost = loaded.not_captured",
            ),
        ),
    ),
    Break("criu", "file missing", "cannot be read", "criu/*/files/pages-1.img"),
    Break(
        "criu",
        "file damaged",
        "does not hold what was written",
        "criu/*/files/pages-1.img",
        alters=True,
    ),
    Break("criu", "not authentic", "signature", "criu/*/manifest", alters=True),
    Break("criu", "program gone", "there is no program", program=("criu", "")),
    Break("criu", "program fails", "CRIU ended with exit status 1", program=("criu", "exit 1")),
    Break("dmtcp", "image missing", "cannot be read", "dmtcp/*/*.dmtcp"),
    Break(
        "dmtcp", "image damaged", "does not hold what was written", "dmtcp/*/*.dmtcp", alters=True
    ),
    Break("dmtcp", "not authentic", "signature", "dmtcp/*/manifest", alters=True),
    Break(
        "dmtcp", "restart fails", "ended with exit status 1", program=("dmtcp_restart", "exit 1")
    ),
]


def _marks(one: Break) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.root] if one.engine == "criu" else []
    # what is looked at before any engine is asked is the same for all of them
    if one.engine != "image" and one.name.endswith(("missing", "authentic", "gone")):
        marks.append(pytest.mark.exhaustive)
    return marks


@pytest.fixture(
    params=[pytest.param(one, id=f"{one.engine}: {one.name}", marks=_marks(one)) for one in BREAKS]
)
def broken(request: pytest.FixtureRequest, ability: Callable[[str, bool], None]) -> Break:
    found: Break = request.param
    why = WAYS[found.engine].missing()
    if found.engine == "dmtcp" and why:  # which few machines have
        pytest.skip(f"missing ability: DMTCP ({why})")
    ability(why, not why)
    return found


def test_the_variables_come_and_nothing_is_lost(
    broken: Break,
    start_notebook: Callable[..., Any],
    document: dict[str, Any],
    tmp_path: Path,
) -> None:
    way = WAYS[broken.engine]
    arguments = ("--Supervisor.durability=manual", *way.arguments)
    notebook = start_notebook(*arguments, **document)
    notebook.run(STATE)
    number = _checkpoint(notebook, broken.engine)
    kill(notebook)

    changed = dict(document)
    kept = tmp_path / "kept"
    with _programs(broken, tmp_path, changed["env"]) as (env, more):
        _alter(broken, tmp_path / "store", kept)
        notebook = start_notebook(*arguments, *more, **{**changed, "env": env})
        text = notebook.run(f"%restore {number}").out
        assert VARIABLES_ONLY in text and re.search(broken.said, text), text
        assert "not brought back: it" in text and "a fresh one has the variables" in text, text
        assert notebook.run("y.append(2); x").result == "[1, 2]"
        kill(notebook)

    for path in kept.rglob("*"):
        if path.is_file():
            shutil.copy2(path, tmp_path / "store" / path.relative_to(kept))
    notebook = start_notebook(*arguments, **document)
    text = notebook.run(f"%restore {number}").out
    assert "a fresh one" not in text, text
    assert notebook.run("next(it), x").result == "('b', [1])"


def _checkpoint(notebook: Any, engine: str) -> int:
    made = notebook.run("%checkpoint")
    number = int(made.out.split("#")[1].split()[0])
    assert durable(notebook, number)["state"] == "ready"
    found = image(notebook, number, engine)
    assert found["state"] == "ready", found
    return number


def _alter(broken: Break, store: Path, kept: Path) -> None:
    if not broken.files:
        return
    paths = list(store.glob(broken.files))
    assert paths
    for path in paths:
        copy = kept / path.relative_to(store)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    if broken.alters:
        damage(paths)
    else:
        for path in paths:
            path.unlink()


@contextlib.contextmanager
def _programs(
    broken: Break, tmp_path: Path, env: dict[str, str]
) -> Iterator[tuple[dict[str, str], tuple[str, ...]]]:
    """The environment and arguments of a kernel whose programs are broken."""
    name, script = broken.program
    env = dict(env)
    more: tuple[str, ...] = ()
    if name == LOADER or broken.source:
        package = changed_package(tmp_path / "broken", *broken.source)
        env["PYTHONPATH"] = str(package)
    if name == LOADER:
        _script(package / "kernel_runtime" / name, script)
    elif broken.engine == "criu" and name:
        path = tmp_path / "programs" / name
        if script:  # one that says its version, and that a check found nothing
            loader = next(Path("/lib64").glob("ld-linux*.so*"))
            body = f'[ "$1" = --version ] && echo Version: 4.1 && exit\n{script}\n'
            body += f'exec {loader} --library-path /lib /bin/false "$@"'
            _script(path, body)
        more = (f"--Supervisor.criu={path}",)
    elif name:
        _script(
            tmp_path / "programs" / name,
            f'case "$1" in --help|--version) exec {shutil.which(name)} "$@";; esac\n{script}',
        )
        env["PATH"] = f"{tmp_path / 'programs'}{os.pathsep}{os.environ['PATH']}"
    yield env, more


def _script(path: Path, body: str) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    "how, on_disk",
    [("killed", True), ("killed", False), ("stopped", True), *more(("stopped", False))],
)
def test_a_frozen_process_that_cannot_be_woken(
    how: str,
    on_disk: bool,
    start_notebook: Callable[..., Any],
    document: dict[str, Any],
    tmp_path: Path,
) -> None:
    """In the same kernel: its image is taken, which is the same; without it the variables."""
    patience = "timeout: float = {}.0"  # also of those that are well
    sooner = ("engines/fork.py", patience.format(30), patience.format(6))
    package = changed_package(tmp_path / "broken", sooner)
    env = {**document["env"], "PYTHONPATH": str(package)}
    notebook = start_notebook(
        "--Supervisor.durability=manual", "--Supervisor.auto=off", **{**document, "env": env}
    )
    notebook.run(STATE)
    number = _checkpoint(notebook, "image")
    if not on_disk:
        for path in (tmp_path / "store").glob("images/*/pages.ttpages"):
            path.unlink()
    frozen = frozen_of(notebook.pid)
    assert frozen
    for process in frozen:
        process.send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    text = notebook.run(f"%restore {number}").out
    if how == "stopped":  # the end of one is noticed before it is asked
        assert "what was written of it to the disk was taken" in text, text
        assert "could not be woken" in text, text
    if on_disk:
        assert "a fresh one" not in text, text
        assert notebook.run("next(it), x").result == "('b', [1])"
    else:
        assert VARIABLES_ONLY in text and "pages.ttpages" in text, text
        assert notebook.run("y.append(2); x").result == "[1, 2]"
    # and all goes on
    notebook.run("again = iter('ab'); _ = next(again)")
    later = int(notebook.run("%checkpoint").out.split("#")[1].split()[0])
    notebook.run("next(again)")
    notebook.run(f"%restore {later}")
    assert notebook.run("next(again)").result == "'b'"


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_without_any_capture_the_session_stays_where_it_was(
    how: str, start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    notebook = start_notebook("--Supervisor.durability=manual", **document)
    notebook.run(STATE)
    number = _checkpoint(notebook, "image")
    kill(notebook)
    for path in store.glob("images/*/pages.ttpages"):
        path.unlink()
    paths = [path for path in (store / "namespaces").rglob("*") if path.is_file()]
    assert paths
    if how == "damaged":
        damage(paths)
    else:
        for path in paths:
            path.unlink()
    notebook = start_notebook("--Supervisor.durability=manual", **document)
    notebook.run("present = iter('ab'); _ = next(present)")
    cell = notebook.run(f"%restore {number}", ok=False)
    said = cell.error + cell.text("stdout") + cell.text("stderr")
    assert "You are back where you were" in said or "Nothing was changed" in said, said
    assert notebook.run("next(present)").result == "'b'"
