"""`jupyter timetravel doctor` on kernelspecs of kernels in containers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyter_timetravel.checks_containers import CHECKS, check_containers
from jupyter_timetravel.containers.options import parse
from jupyter_timetravel.doctor import as_text, examine
from jupyter_timetravel.findings import FAULTY, FINE, LIMITED, SKIPPED
from tests.containers.conftest import START, built, container


def test_what_kernels_are_given_is_told(
    install: Callable[..., str], start: START, place: Path, docker: Any, image: str
) -> None:
    assert check_containers().state == SKIPPED
    install(memory="3g", network="none")
    finding = check_containers()
    assert finding.state == FINE, finding
    assert f"boxed: {image}, isolation namespaces, network none, memory 3.0 GiB" in finding.text
    assert "/dev/shm 3.0 GiB (option shm)" in finding.text
    # and that is what a kernel finds inside, in its own /dev/shm
    inside = "import os; found = os.statvfs('/dev/shm'); print(found.f_frsize * found.f_blocks)"
    assert start(memory="3g").run(inside).out == str(3 << 30)
    install("small", memory="3g", shm="64m")
    finding = check_containers()
    assert finding.state == LIMITED
    assert "/dev/shm 0.1 GiB (option shm), less than the memory" in finding.text


def test_without_a_limit_half_of_the_memory_is_shared(
    start: START, docker: Any, place: Path, image: str
) -> None:
    notebook = start()
    inside = "import os; found = os.statvfs('/dev/shm'); print(found.f_frsize * found.f_blocks)"
    told = parse({"image": image})[0].shared_memory
    assert 0 <= int(notebook.run(inside).out) - told < os.sysconf("SC_PAGE_SIZE")
    assert container(docker, place).attrs["HostConfig"]["ShmSize"] == told


def test_what_would_not_start_is_told(install: Callable[..., str], docker: Any, image: str) -> None:
    install("gone", docker_host="unix:///nonexistent/docker.sock")
    install("lost", image="no-such-image:1")
    install("odd", memory="lots")
    install("good")
    finding = check_containers()
    assert finding.state == FAULTY
    for text in (
        "gone: There is no Docker daemon at unix:///nonexistent/docker.sock",
        "lost: There is no image 'no-such-image:1' on this machine",
        "odd: memory is 'lots'",
        f"good: {image}, isolation namespaces",
    ):
        assert text in finding.text
    table = as_text(examine(CHECKS))
    assert "✗ containers" in table and "To mend:" in table


def test_an_image_without_this_package(
    install: Callable[..., str], docker: Any, image: str
) -> None:
    with built(docker, f"FROM {image}", "RUN pip uninstall --yes jupyter_timetravel") as other:
        install(image=other)
        finding = check_containers()
    assert finding.state == FAULTY
    assert "has no jupyter_timetravel under 'python'" in finding.text
