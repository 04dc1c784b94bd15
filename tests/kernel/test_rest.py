"""When a session was at rest: what was made then is another program's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_runtime.supervisor import rest as rest_module
from kernel_runtime.supervisor.rest import Rest

WAITS = "print('in', flush=True); input()"
WORKS = f"""\
import threading
def work():
    while True: sum(range(1000))
threading.Thread(target=work, daemon=True).start(); {WAITS}"""
HAS_CHILD = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()']); {WAITS}"


def ticks() -> None:
    """Wait until the clock of files has gone on."""
    begin = time.time_ns()
    while time.time_ns() < begin + 50_000_000:
        time.sleep(0.01)


@contextmanager
def process(code: str) -> Iterator[str]:
    """Its directory below /proc, once it waits."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as started:  # type: ignore[call-overload]
        assert started.stdout.readline() == b"in\n"
        yield f"/proc/{started.pid}"
        started.communicate(b"\n")


def span(proc: str) -> tuple[Rest, int]:
    """A span, and a moment in it."""
    rest = Rest(lambda: [proc])
    rest.begins()
    ticks()
    middle = time.time_ns()
    ticks()
    rest.ends()
    return rest, middle


def test_a_span_is_between_two_requests() -> None:
    with process(WAITS) as proc:
        before = time.time_ns()
        rest, middle = span(proc)
        assert rest.holds(middle)
        assert not rest.holds(before - 1) and not rest.holds(time.time_ns())
        rest.ends()  # said again
        assert rest.holds(middle)


def test_what_works_in_the_background_is_no_rest() -> None:
    for code in (WORKS, HAS_CHILD):
        with process(code) as proc:
            rest, middle = span(proc)
            assert not rest.holds(middle), code


def test_a_process_that_has_ended_meanwhile_is_no_rest() -> None:
    with process(WAITS) as proc:
        rest = Rest(lambda: [proc])
        rest.begins()
        ticks()
        middle = time.time_ns()
    rest.ends()
    assert not rest.holds(middle)


def test_who_is_held_up_while_it_looks_has_not_seen_the_clock_being_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else all that was known is forgotten, and files of other programs go."""
    wall, held_up = time.time_ns, [0.02]

    def late() -> int:
        now = wall()
        if held_up:
            time.sleep(held_up.pop())
        return now

    with process(WAITS) as proc:
        rest, middle = span(proc)
        rest.begins()
        ticks()
        fake = SimpleNamespace(time_ns=late, monotonic_ns=time.monotonic_ns)
        monkeypatch.setattr(rest_module, "time", fake)
        rest.ends()
        assert rest.holds(middle)


def test_files_of_other_programs_stay(notebook: Any) -> None:
    """Made by another program, and not touched by a cell; else they go, as before."""
    work = Path(notebook.cwd)
    notebook.run("x = 1")
    notebook.head()
    ticks()
    for name in ("theirs", "both", "moved", "deep/er/theirs"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(name)
    ticks()
    notebook.run(
        "import os, pathlib, threading, time\n"
        "open('both', 'a').write('!'); os.rename('moved', 'away'); open('mine', 'w').close()\n"
        "pathlib.Path('deep/mine').touch()"
    )
    notebook.head()
    told = notebook.command("restore", checkpoint=1)
    stays = sorted(str(path.relative_to(work)) for path in work.rglob("*") if path.is_file())
    assert stays == ["deep/er/theirs", "theirs"]
    reason = "stays as it is: another program made it while no cell ran"
    assert {f"{name} {reason}" for name in stays} <= set(told["warnings"])
    assert notebook.run("print('os' in dir())").out == "False"
    # what was replaced, and what a cell has changed, is in the checkpoint before the restore
    notebook.command("restore", undo=True)
    assert (work / "both").read_text() == "both!" and (work / "away").read_text() == "moved"

    # a thread of the session's own, and a child, may have made it
    notebook.run(
        "def later():\n"
        "    while not os.path.exists('go'): time.sleep(0.01)\n"
        "    open('of a thread', 'w').close()\n"
        "t = threading.Thread(target=later, daemon=True); t.start()"
    )
    notebook.run("import subprocess; c = subprocess.Popen('while ! [ -e go ]; do sleep 0.01; done; "
                 "touch \"of a child\"; sleep 600', shell=True)")  # fmt: skip
    notebook.head()
    (work / "go").touch()
    made = [work / "of a thread", work / "of a child"]
    while not all(os.path.exists(path) for path in made):
        time.sleep(0.01)
    ticks()
    notebook.run("c.kill()")
    notebook.command("restore", checkpoint=1)
    assert not any(path.exists() for path in made)
