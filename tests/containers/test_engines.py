"""The engines that others make, inside containers: with which rights each of them works."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernel_runtime.dmtcp import DmtcpError, find
from kernel_runtime.engines import criu_program
from tests.conftest import Notebook
from tests.containers.conftest import START, container, revive
from tests.waiting import until

SETUP = (
    "import itertools, threading, time\ng = itertools.count(); next(g); n = 0\n"
    "def count():\n    global n\n    while True: n += 1; time.sleep(.02)\n"
    "threading.Thread(target=count, daemon=True).start()"
)
GOES_ON = (
    "seen = n; end = time.monotonic() + 50\n"
    "while n <= seen and time.monotonic() < end: time.sleep(.02)\n"
    "print(next(g), n > seen)"
)


@contextmanager
def image_with(docker: Any, image: str, paths: Sequence[Path]) -> Iterator[str]:
    """An image that has files and directories of this machine, too, under their own paths."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", dereference=True) as tar:
        for path in paths:
            tar.add(path, str(path).lstrip("/"))
    name = f"timetravel-test-{uuid.uuid4().hex}"
    made = docker.containers.create(image, "true")
    try:
        made.put_archive("/", packed.getvalue())
        made.commit(repository=name)
    finally:
        made.remove()
    try:
        yield name
    finally:
        docker.images.remove(name, force=True)


def libraries(program: Path) -> list[Path]:
    """The shared libraries of a program that a small image may lack."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"=> (\S*lib(?:atomic|stdc\+\+|gcc_s)\S*)", listed)
    # in /usr: a directory of the archive must not take the place of the link /lib
    return [Path(os.path.realpath(Path(path).parent), Path(path).name) for path in found]


def goes_on(notebook: Notebook, engine: str, docker: Any, place: Path) -> None:
    """In place, and in the next container: generator and thread, where they were."""
    notebook.run(SETUP)
    made = notebook.run("%checkpoint --label here")
    assert "here" in made.out

    def written() -> bool:
        captures = notebook.command("get", checkpoint="here")["checkpoint"]["captures"]
        states = {c["engine"]: c["state"] for c in captures if c["kind"] == "process"}
        assert states.get(engine) != "failed", captures
        return states.get(engine) == "ready"

    until(written, "the process is on the disk")
    notebook.run("next(g)")
    assert "itself" not in notebook.run("%restore here").out  # "could not be brought back"
    assert notebook.run(GOES_ON).out == "1 True"
    container(docker, place).remove(force=True)
    revive(notebook)
    assert "itself" not in notebook.run("%restore here").out
    assert notebook.run(GOES_ON).out == "1 True"


@pytest.fixture
def document(place: Path) -> dict[str, str]:
    path = place / "work" / "a.ipynb"
    path.write_text("{}")
    return {"JPY_SESSION_NAME": str(path)}


@pytest.mark.timeout(300)
def test_dmtcp_needs_no_rights(
    start: START, place: Path, docker: Any, image: str, document: dict[str, str]
) -> None:
    try:
        tools = find()
    except DmtcpError as error:
        pytest.skip(f"missing ability: DMTCP ({error})")
    here = tools.launch.parent
    top = here.parent
    programs = [*here.glob("dmtcp_*"), *here.glob("mtcp_*")]
    rest = [path for path in (top / "lib/dmtcp", top / "lib64/dmtcp") if path.is_dir()]
    with image_with(docker, image, [*programs, *rest, *libraries(tools.launch)]) as name:
        found = ":".join(("/opt/timetravel/venv/bin", str(here), "/usr/bin", "/bin"))
        notebook = start(
            image=name,
            process_engine="dmtcp",
            auto="off",
            env=document,
            environment={"PATH": found},
        )
        facts = container(docker, place).attrs["HostConfig"]
        assert (facts["CapDrop"], facts["CapAdd"]) == (["ALL"], None)
        goes_on(notebook, "dmtcp", docker, place)
        notebook.manager.shutdown_kernel()


@pytest.fixture
def with_criu(docker: Any, image: str, ability: Callable[[str, bool], None]) -> Iterator[str]:
    try:
        program = criu_program.find()
    except criu_program.CriuUnusable as error:
        ability(f"CRIU ({error})", False)
        raise
    started_by = Path(shutil.which("criu") or program.path)
    paths = {started_by, Path(program.path), Path(program.loader), *map(Path, program.libraries)}
    with image_with(docker, image, sorted(paths)) as name:
        yield name


@pytest.mark.root
@pytest.mark.timeout(300)
def test_criu_needs_three_capabilities_and_no_filter(
    start: START, place: Path, docker: Any, with_criu: str, document: dict[str, str]
) -> None:
    notebook = start(
        image=with_criu,
        images_by="criu",
        env=document,
        capabilities=["SYS_ADMIN", "SYS_TIME", "NET_ADMIN"],
        seccomp="unconfined",
    )
    goes_on(notebook, "criu", docker, place)
    notebook.manager.shutdown_kernel()


@pytest.mark.root
def test_without_them_our_own_image_is_taken(
    start: START, place: Path, docker: Any, with_criu: str, document: dict[str, str]
) -> None:
    notebook = start(image=with_criu, images_by="criu", env=document)
    notebook.run(f"{SETUP}\n%checkpoint --label here")

    def captures() -> dict[str, Any]:
        found = notebook.command("get", checkpoint="here")["checkpoint"]["captures"]
        return {c["engine"]: c for c in found if c["kind"] == "process"}

    until(lambda: captures().get("image", {}).get("state") == "ready", "the process is on the disk")
    criu = captures()["criu"]
    assert criu["state"] == "failed"
    assert "not permitted" in str(criu), criu
    container(docker, place).remove(force=True)
    revive(notebook)
    assert "itself" not in notebook.run("%restore here").out
    assert notebook.run(GOES_ON).out == "1 True"
    notebook.manager.shutdown_kernel()
