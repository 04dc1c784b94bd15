"""A coordinator of the real DMTCP; without it the tests are skipped by that name."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel_runtime.dmtcp import Coordinator, launch, restart
from tests.waiting import until

PROGRAMS = Path(__file__).with_name("programs")


def has_dmtcp() -> bool:
    """Whether its programs are there."""
    return shutil.which("dmtcp_launch") is not None


@pytest.fixture(autouse=True)
def _needs_dmtcp() -> None:
    if not has_dmtcp():
        pytest.skip("missing ability: DMTCP (dmtcp_launch is not on PATH)")


def kill_all(coordinator: Coordinator) -> None:
    """kill -9 for all that runs under it; some of them end with the others."""
    for client in coordinator.clients():
        with contextlib.suppress(ProcessLookupError):
            os.kill(client.real_pid, 9)


class Program:
    """One of tests/dmtcp/programs, under a coordinator; it appends a line for each one asked."""

    def __init__(self, coordinator: Coordinator, name: str, directory: Path) -> None:
        self.coordinator = coordinator
        self.output = directory / f"{name}.out"
        self.ask = directory / f"{name}.ask"
        self.process = launch(
            coordinator,
            [sys.executable, str(PROGRAMS / name), str(self.ask), str(self.output)],
            cwd=directory,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )
        self.answers()  # it is up

    def answers(self) -> str:
        """Have it do its work once more; return what it found."""
        known = len(self._lines())
        self.ask.write_text(f"{known}\n")
        until(lambda: len(self._lines()) > known, f"no answer; it said {self._lines()[-3:]}")
        return self._lines()[known]

    def _lines(self) -> list[str]:
        try:
            text = self.output.read_text()
        except FileNotFoundError:
            return []
        return text[: text.rfind("\n") + 1].splitlines()

    def killed(self) -> None:
        """kill -9 for all of its processes."""
        kill_all(self.coordinator)
        self.process.wait()
        self.coordinator.wait_empty()

    def restarted(self, images: list[Path]) -> None:
        """Bring it back."""
        self.process = restart(
            self.coordinator, images, stdin=subprocess.DEVNULL, start_new_session=True
        )
        until(lambda: len(self.coordinator.clients()) == len(images))


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    """A running coordinator."""
    with Coordinator(tmp_path / "dmtcp") as one:
        yield one
        if one.is_alive:
            kill_all(one)


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    """What starts a kernel of one notebook, again and again."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "n.ipynb").write_text("{}")
    return {"cwd": work, "env": {"JPY_SESSION_NAME": str(work / "n.ipynb")}}
