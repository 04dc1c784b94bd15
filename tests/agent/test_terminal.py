"""The command line at a terminal: questions, progress, completion, a reader that goes away."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_world import MAIN

Start = Callable[..., Any]
WAITS_FOR_ITS_BAR = """
import time
from jupyter_timetravel.meter import Meter
advance, text, shown = Meter.advance, Meter.text, set()
def told(self):
    line = text(self)
    shown.add(line.partition(" [")[0])
    return line
def waiting(self, by=1):
    advance(self, by)
    end = time.monotonic() + 60
    while self._what == what and what not in shown:
        assert time.monotonic() < end, self._what
        time.sleep(0.01)
Meter.advance, Meter.text = waiting, told
"""
"""Work that goes on when it has been asked how far it is: it takes long enough on any machine."""
COMPLETE = 'exec 8>&1; exec 9>/dev/null; exec "$0" -c "$1" 1>/dev/null'
"""What the functions of argcomplete do in a shell."""


class Terminal:
    """A command at a pseudo-terminal."""

    def __init__(self, *words: Any, code: str = MAIN) -> None:
        self.seen = ""
        self._master, slave = pty.openpty()
        command = [sys.executable, "-c", code, *map(str, words)]
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)

    def until(self, text: str) -> None:
        """Read until it has said this."""
        end = time.monotonic() + 60
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            if not self.read(1.0):
                assert text in self.seen, self.seen

    def read(self, patience: float) -> bool:
        """Take in what it says next, if it says anything for so long; False once it has ended."""
        if select.select([self._master], [], [], patience)[0]:
            try:
                self.seen += os.read(self._master, 65536).decode(errors="replace")
            except OSError:  # nobody has the other end any more
                return False
        return True

    def type(self, text: str) -> None:
        """As a person does."""
        os.write(self._master, text.encode())

    def end(self) -> int:
        """Wait for its end; its status."""
        while self.read(60):  # it may not end before somebody has read what it says
            pass
        status = self.process.wait(60)
        os.close(self._master)
        return status


def test_a_question_is_asked_and_no_is_an_answer(book: Path, on: Start, tt: Start) -> None:
    kernel = on(book)
    kernel.cells("x = 1", "x = 2")
    for answer, status, left in (("no", 4, True), ("yes", 0, False)):
        terminal = Terminal("delete", book, "1")
        terminal.until("Type yes to go on")
        terminal.type(f"{answer}\n")
        assert terminal.end() == status
        numbers = [one["number"] for one in tt("list", book, "--json")["checkpoints"]]
        assert (1 in numbers) is left


def test_long_work_says_how_far_it_is(book: Path, on: Start, tt: Start) -> None:
    kernel = on(book)
    kernel.run("import os, time; open('go', 'w').close()")
    terminal = Terminal("checkpoint", book, "--label", "quick")
    assert terminal.end() == 0
    cell = kernel.send("os.remove('go')\nwhile not os.path.exists('go'): time.sleep(0.01)")
    while not tt("status", book, "--json")["busy"] or (book.parent / "go").exists():
        time.sleep(0.05)
    terminal = Terminal("checkpoint", book, "--label", "slow")
    terminal.until("1 s: at work")
    (book.parent / "go").touch()
    terminal.until("[slow]")
    assert terminal.end() == 0
    kernel.wait(cell)
    assert "\x1b[K" in terminal.seen


@pytest.mark.parametrize("work", ["export", "import", "push", "pull"])
def test_work_that_can_be_counted_has_a_bar(
    work: str, book: Path, on: Start, tt: Start, tmp_path: Path
) -> None:
    kernel = on(book)
    kernel.run("import os; open('big', 'wb').write(os.urandom(6_000_000)); x = 1")
    kernel.head()
    remote = f"file://{tmp_path}/remote"
    (tmp_path / "remote").mkdir()
    file, other = tmp_path / "a.ttl", ["--store", tmp_path / "other"]
    if work == "import":
        tt("export", book, "-o", file)
    if work == "pull":
        tt("push", remote, book)
    command, bar = {
        "export": (["export", book, "-o", file], "writing ["),
        "import": (["import", file, *other], "storing ["),
        "push": (["push", remote, book], "sending ["),
        "pull": (["pull", remote, *other], "fetching ["),
    }[work]
    terminal = Terminal(*command, code=f"what = {bar[:-2]!r}{WAITS_FOR_ITS_BAR}{MAIN}")
    assert terminal.end() == 0, terminal.seen
    shown = terminal.seen.partition(bar)[2]
    assert "%, " in shown and " of " in shown
    assert terminal.seen.rindex("\x1b[K") > terminal.seen.rindex(bar), "the bar has gone away"
    # whoever is no terminal sees nothing of it
    quiet = subprocess.run(
        [sys.executable, "-c", MAIN, "check"], capture_output=True, text=True, check=True
    )
    assert quiet.stderr == "" and "\x1b" not in quiet.stdout


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("jupyter-timetravel ch", {"check", "checkpoint"}),
        ("jupyter-timetravel restore --dr", {"--dry-run "}),
        ("jupyter-timetravel restore --only ", {"process", "files"}),
    ],
)
def test_a_shell_completes(line: str, found: set[str]) -> None:
    done = subprocess.run(
        ["bash", "-c", COMPLETE, sys.executable, MAIN],
        env={
            **os.environ,
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_IFS": "\n",
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
            "_ARGCOMPLETE_COMP_WORDBREAKS": " ",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )  # fmt: skip
    assert set(filter(None, done.stdout.split("\n"))) >= found, done


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_take_what_completion_prints(shell: str, tt: Start) -> None:
    script = tt("completion", shell)
    assert "jupyter-timetravel" in script and "jupyter" in script
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=script, text=True, timeout=60, check=False)
        assert checked.returncode == 0


def test_a_reader_that_goes_away(book: Path, on: Start) -> None:
    kernel = on(book)
    kernel.run("x = 1")
    kernel.head()
    command = [sys.executable, "-c", MAIN, "list", str(book), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141
