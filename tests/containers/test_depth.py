"""Case docker-05: more checkpoints than an image may have layers, in one container.

The whole case is 150 checkpoints with a file of 50 MB and 150 restores; here the files are smaller
and the chain of restores is shorter: TT_WHOLE=1 runs all of it.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_timetravel.cli import main
from jupyter_timetravel.containers.daemon import LABEL
from tests.conftest import Notebook
from tests.containers.conftest import PACKAGES, START

WHOLE = os.environ.get("TT_WHOLE") == "1"
COUNT = 150 if WHOLE else 130
"""Above the 125 layers of an image and the 48 of a stack of ours."""
BASE = 50_000_000 if WHOLE else 5_000_000
EACH = 100_000 if WHOLE else 10_000
CHAIN = 150 if WHOLE else 8
ALLOWED = BASE + COUNT * 3 * EACH + 100_000_000
"""Bytes on the disk: what the case allows, in proportion."""


def taken(top: Path) -> dict[str, int]:
    """Bytes on the disk below a directory, by what they are; an inode once."""
    seen: set[tuple[int, int]] = set()
    sums: dict[str, int] = {}
    for parent, _, names in os.walk(top):
        part = Path(parent).relative_to(top).parts[:1]
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # the kernel clears up meanwhile
                found = os.lstat(os.path.join(parent, name))
                if (found.st_dev, found.st_ino) not in seen:
                    seen.add((found.st_dev, found.st_ino))
                    kind = part[0] if part else name
                    sums[kind] = sums.get(kind, 0) + found.st_blocks * 512
    return sums


def state(notebook: Notebook, number: int) -> str:
    """What the workspace and the environment hold, of steps around a number."""
    return notebook.run(
        f"print(*(open(top + '/step.txt').read() for top in (os.getcwd(), here)), n,\n"
        f"      *(os.path.exists(f'{{top}}/f{{k}}.bin')\n"
        f"        for top in (os.getcwd(), here) for k in ({number}, {number + 1})))"
    ).out


def at(number: int) -> str:
    return f"{number} {number} {number} True False True False"


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(3000 if WHOLE else 400)
def test_more_checkpoints_than_layers(start: START, place: Path, docker: Any) -> None:
    document = place / "work" / "a.ipynb"
    document.write_text("{}")
    notebook = start(env={"JPY_SESSION_NAME": str(document)}, network="none")
    notebook.run(f"{PACKAGES}\nopen('base.bin', 'wb').write(os.urandom({BASE})); n = 1")
    times = {}
    for number in range(2, COUNT + 1):
        began = time.perf_counter()
        notebook.run(
            f"n = {number}\nfor top in (os.getcwd(), here):\n"
            f"    open(top + '/step.txt', 'w').write(str(n))\n"
            f"    open(f'{{top}}/f{{n}}.bin', 'wb').write(os.urandom({EACH // 2}))"
        )
        head = notebook.head()
        times[number] = time.perf_counter() - began
        assert head["number"] == number
    listed = {c["number"]: c for c in notebook.command("list")["checkpoints"]}
    for number in range(2, COUNT + 1):
        captures = {c["engine"]: c["state"] for c in listed[number]["captures"]}
        assert captures["overlay"] == captures["workspace"] == "ready", (number, captures)
    [store] = (place / "data" / "timetravel-containers").glob("*/kept/store")
    disk = taken(store)

    began = time.perf_counter()
    notebook.run("%restore 10")
    first = time.perf_counter() - began
    assert state(notebook, 10) == at(10)
    notebook.run(f"%restore {COUNT}")
    assert state(notebook, COUNT) == at(COUNT)

    rounds = []
    for number in range(CHAIN):
        began = time.perf_counter()
        notebook.run(f"%restore {COUNT - 1}")
        rounds.append(time.perf_counter() - began)
        assert state(notebook, COUNT - 1) == at(COUNT - 1)
        notebook.run(f"open(here + '/round', 'w').write('{number}'); open('round', 'w').write('x')")
        notebook.run("%checkpoint")

    # one in the middle goes: its neighbours stay
    notebook.command("delete", checkpoint=20)
    for number in (19, 21):
        notebook.run(f"%restore {number}")
        assert state(notebook, number) == at(number)
    refused = notebook.run("%restore 20", ok=False)
    assert "20" in refused.error

    notebook.head()
    notebook.manager.shutdown_kernel()
    assert main(["check", "--store", str(store)]) == 0
    print(
        f"{COUNT} checkpoints: {sum(disk.values()) / 1e6:.0f} MB of {ALLOWED / 1e6:.0f}, {disk}, "
        f"at the end {taken(store)}; cell and checkpoint "
        f"{statistics.median(times[k] for k in range(3, 10)):.3f} s at 5, "
        f"{statistics.median(times[k] for k in range(COUNT - 6, COUNT + 1)):.3f} s at {COUNT}; "
        f"restore of #10 {first:.3f} s, of #{COUNT - 1} {statistics.median(rounds):.3f} s"
    )
    assert sum(disk.values()) <= ALLOWED
    # an image that is made of a container has its labels; others may make images meanwhile
    made_of_ours = {"dangling": True, "label": f"{LABEL}.runtime"}
    assert docker.images.list(filters=made_of_ours) == []
