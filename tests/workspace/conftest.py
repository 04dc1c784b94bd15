"""Every test of the workspace runs twice where that can differ: as root, and as a user.

Started by root, the user's part of a test runs in a child process that has given its
privileges up. Started by a user, the tests as root are skipped by name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from workspace_world import USER, World, become_user

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


@pytest.fixture(params=[pytest.param("root", marks=pytest.mark.root), "user"])
def who(request: pytest.FixtureRequest) -> str:
    """Whose process the test is."""
    name: str = request.param
    if name == "root" and os.geteuid() != 0:
        pytest.skip("missing ability: root")
    return name


@pytest.fixture
def base(who: str, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory that belongs to whoever the test is.

    Only some tests are about disks; the others work in memory.
    """
    name = request.module.__name__.rpartition(".")[2]
    where = None if name in ("test_cases", "test_disk") else MEMORY
    made = Path(tempfile.mkdtemp(prefix="tt-workspace-", dir=where))
    if who == "user" and os.geteuid() == 0:
        os.chown(made, USER, USER)
    yield made
    World.close_all()
    _remove(made)


@pytest.fixture
def make_world(base: Path) -> Callable[..., World]:
    """Make the test's world, inside the test's own process."""
    return lambda **options: World(base, **options)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test as the user in a child process; its failure becomes the test's."""
    callspec = getattr(pyfuncitem, "callspec", None)
    if callspec is None or callspec.params.get("who") != "user" or os.geteuid() != 0:
        return None
    wanted = pyfuncitem._fixtureinfo.argnames
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in wanted}
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        text = ""
        try:
            become_user()
            pyfuncitem.obj(**arguments)
        except pytest.skip.Exception as skipped:
            text = f"SKIP{skipped.msg}"
        except BaseException:
            text = traceback.format_exc()
        with open(writing, "w", errors="backslashreplace") as out:
            out.write(text)
        os._exit(0)
    os.close(writing)
    with open(reading, errors="replace") as result:
        text = result.read()
    _, status = os.waitpid(child, 0)
    if text.startswith("SKIP"):
        pytest.skip(text[4:])
    if text or status:
        pytest.fail(f"as an ordinary user (status {status}):\n{text}", pytrace=False)
    return True


def _remove(path: Path) -> None:
    subprocess.run(["chmod", "-R", "u+rwx", str(path)], check=False, stderr=subprocess.DEVNULL)
    shutil.rmtree(path)
