"""Fixtures for the cases of the environment: directories that are covered, and kernels on them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import open_up

sys.path.insert(0, str(Path(__file__).parent))

from session_world import Session


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory below the user's real home: /tmp is the host's own inside, a home is covered."""
    made = Path(tempfile.mkdtemp(prefix="tt-test-", dir=Path.home()))
    yield made
    open_up(made)
    shutil.rmtree(made)


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory that is covered, and holds the store too."""
    made = Path(tempfile.mkdtemp(prefix="tt-kernels-", dir=os.path.expanduser("~")))
    yield made
    open_up(made)
    shutil.rmtree(made)


@pytest.fixture
def start_notebook(
    home: Path, base: Path, start_notebook: Callable[..., Any]
) -> Callable[..., Any]:
    """As everywhere; the kernels have ended before these directories are deleted."""
    return start_notebook


@pytest.fixture
def work(home: Path) -> Path:
    """The workspace, with the notebook."""
    made = home / "work"
    made.mkdir()
    (made / "n.ipynb").write_text(json.dumps({"cells": [], "metadata": {}, "nbformat": 4}))
    return made


@pytest.fixture
def E(home: Path) -> Path:
    """A directory of the environment that is there before the kernel starts."""
    made = home / "E"
    made.mkdir()
    return made


@pytest.fixture
def start(
    home: Path, start_notebook: Callable[..., Any], ability: Callable[[str, bool], None]
) -> Callable[..., Any]:
    """Start kernels whose HOME is `home` and whose environment is covered."""

    def start_in_home(*arguments: str, env: dict[str, str] | None = None, **options: Any) -> Any:
        notebook = start_notebook(*arguments, env={"HOME": str(home), **(env or {})}, **options)
        found = notebook.command("status")["environment"]
        ability(f"overlays ({found['problem']})", bool(found["covered"]))
        return notebook

    return start_in_home


@pytest.fixture
def notebook(start: Callable[..., Any]) -> Any:
    """A kernel with the default settings and a covered home."""
    return start()


PLAYED = """
mount --bind "$ETC" /etc && {mounts}
for word; do case "$word" in *.json) chown 12345 "$word";; esac; done
exec setpriv --reuid=12345 --regid=12345 --clear-groups sh -c 'cd "$W" && exec "$@"' sh "$@"
"""


@pytest.fixture
def play(
    start_notebook: Callable[..., Any], tmp_path: Path, ability: Callable[[str, bool], None]
) -> Callable[..., Any]:
    """As root: start a kernel as an ordinary user (12345), on a host with another /etc.

    That is ``tmp_path / "etc"``. mounts: shell. before: a program around it.
    """
    ability("root", os.geteuid() == 0)
    for directory in (tmp_path.parent.parent, tmp_path.parent, tmp_path):
        directory.chmod(0o755)
    subprocess.run(["cp", "-a", "/etc", tmp_path / "etc"], check=True)
    with open(tmp_path / "etc/passwd", "a") as f:
        f.write("ttcase:x:12345:12345::/nonexistent:/bin/sh\n")

    def start(
        mounts: str = "true", covered: bool = True, before: tuple[str, ...] = (), **env: str
    ) -> Any:
        for name in ("work", "home", "ipython", "store", "keys", "r"):
            (tmp_path / name).mkdir(exist_ok=True)
            os.chown(tmp_path / name, 12345, 12345)
            (tmp_path / name).chmod(0o700)
        shell = ("sh", "-c", PLAYED.format(mounts=mounts).strip(), "sh")
        named = {"ETC": str(tmp_path / "etc"), "HOME": str(tmp_path / "home")}
        notebook = start_notebook(
            prefix=("unshare", "-m", *before, *shell),
            env={**named, "W": str(tmp_path / "work"), **env},
        )
        found = notebook.command("status")["environment"]
        if covered:
            ability(f"overlays ({found['problem']})", bool(found["covered"]))
        return notebook

    return start


@pytest.fixture
def session(
    base: Path, start_notebook: Callable[..., Any], ability: Callable[[str, bool], None]
) -> Iterator[Session]:
    """A notebook whose kernel covers the environment; it is started."""
    # /tmp is the host's own inside, also for root, for whom TMPDIR may be covered
    with tempfile.TemporaryDirectory(prefix="tt-armed-", dir="/tmp") as armed:
        made = Session(base, start_notebook, base / "store", Path(armed) / "kill-at")
        made.start()
        ability("overlays", made.covered())
        yield made


@pytest.fixture
def file_server(
    tmp_path: Path, ability: Callable[[str, bool], None]
) -> Iterator[Callable[..., tuple[Path, Path]]]:
    """Mount a directory as a file server would; give it and the directory behind it."""
    ability("FUSE", os.geteuid() == 0 and os.path.exists("/dev/fuse"))
    started: list[tuple[Any, Path]] = []

    def begin(
        latency: float = 0.0,
        requests: str | Path = os.devnull,
        where: str = "nfs",
        **more: str,
    ) -> tuple[Path, Path]:
        source, mounted = tmp_path / "served", tmp_path / where
        for name in ("", "work", "store"):
            (source / name).mkdir(exist_ok=True)
            os.chown(source / name, 12345, 12345)
        mounted.mkdir()
        with open(requests, "w") as file:  # a line for each
            server = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("fuse_passthrough.py"), source, mounted],
                stdout=subprocess.PIPE, stderr=file, text=True,
                env={**os.environ, "LATENCY": str(latency), "TRACE": "1", **more},
            )  # fmt: skip
        started.append((server, mounted))
        ability("FUSE", server.stdout.readline() == "mounted\n")
        return mounted, source

    yield begin
    for server, mounted in started:
        subprocess.run(["umount", "-l", mounted], check=False)
        server.kill()
        server.wait()
        server.stdout.close()
