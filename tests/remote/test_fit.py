"""What does not fit is compared and named before anything is touched: processor, kernel, Python,
packages."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_timetravel.remote import fit
from kernel_runtime import machine
from kernel_runtime.store.database import open_store
from kernel_runtime.store.keys import Keys
from kernel_runtime.store.namespaces import NamespaceStore
from tests.exchange.conftest import write_notebook
from tests.exchange.world import World
from tests.remote.conftest import Command, Remote, sessions

HERE = {
    "architecture": "x86_64",
    "kernel": "6.1.0-18-amd64",
    "build": "#1 SMP Debian",
    "features": ["avx", "avx2", "sse2"],
}
MANY = [f"new{number}" for number in range(9)]


@pytest.mark.parametrize(
    ("made_on", "why"),
    [
        ({}, []),
        ({"features": ["sse2"]}, []),  # avx and avx2 are in this machine's list alone
        ({"features": ["avx512f", "sse2"]}, ["the processor has no avx512f"]),
        (
            {"features": MANY},
            ["the processor has no new0, new1, new2, new3, new4, new5 and 3 more"],
        ),
        ({"architecture": "aarch64"}, ["the processor is x86_64, not aarch64"]),
        ({"kernel": "5.10.0"}, ["the kernel is 6.1.0-18-amd64, not 5.10.0"]),
        (
            {"build": "#2 SMP Debian"},
            ["the kernel 6.1.0-18-amd64 is another build (#1 SMP Debian)"],
        ),
        (
            {"features": ["avx512f"], "kernel": "5.10.0", "build": "#9"},
            ["the processor has no avx512f", "the kernel is 6.1.0-18-amd64, not 5.10.0"],
        ),
    ],
)
def test_machines(made_on: dict[str, Any], why: list[str]) -> None:
    assert machine.misfits({**HERE, **made_on}, HERE) == why


def test_what_is_not_said_is_not_compared() -> None:
    assert machine.misfits({}, HERE) == []
    assert machine.misfits(machine.here()) == []


def of(python: str = platform.python_version(), **modules: str) -> str:
    return fit.differences({"python": python, "modules": modules})


def test_pythons_and_packages() -> None:
    numpy = importlib.metadata.version("numpy")
    major, minor, *_ = platform.python_version_tuple()
    assert of(numpy=numpy, json="2.0.9", sys="") == "yes"
    assert of(f"{major}.{minor}.99") == "yes", "another micro version has the same bytecode"
    told = of("2.7.18")
    assert told.startswith("in part, compared with ")
    assert f"Python is {platform.python_version()}, not 2.7.18: functions and classes" in told
    assert f"numpy is {numpy}, not 0.9" in of(numpy="0.9")
    assert "no package has onlyona" in of(onlyona="1.0", numpy=numpy)
    told = of("2.7.18", onlyona="1.0", numpy="0.9")
    assert all(one in told for one in ("2.7.18", "onlyona", "not 0.9"))
    assert "\n" not in of("3.1\n1", **{"a\nb": "1\n2"}), "of somebody else's making"


Change = Callable[[dict[str, Any]], None]


def altered(store: Path, keys: Path, label: str, change: Change) -> None:
    """Let the variables in a store say that they are of another Python, as that would have."""
    namespaces = NamespaceStore(store, Keys(keys))
    with contextlib.closing(open_store(store, Keys(keys))) as opened:
        (info,) = opened.timelines()
        timeline = opened.look_at(info.id)
        checkpoint = timeline.resolve(label)
        capture = checkpoint.capture("namespace")
        assert capture is not None and capture.ref is not None
        manifest = json.loads(json.dumps(namespaces.manifest(capture.ref)))
        change(manifest)
        ref = namespaces.save_manifest(manifest)
        namespaces.flush()
        captures = tuple(
            replace(c, ref=ref) if c.ref == capture.ref else c for c in checkpoint.captures
        )
        opened.save(timeline.state, [timeline.replace(checkpoint.id, captures=captures)])


def test_it_is_told_before_anything_is_touched(
    world: World, remote: Remote, first: Command, mine: Command, other: Path
) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["python"] = "2.7.18"
        manifest["modules"] = {"onlyona": "1.0", "numpy": "0.9"}

    altered(world.store, Path(world.keys), "two", change)
    first("push", remote.url, world.notebook, **remote.env)
    told = mine("pull", remote.url, "--check", **remote.env)
    for one in ("not 2.7.18", "no package has onlyona", "not 0.9"):
        assert one in told, told
    assert sessions(mine, other / "store") == [], "nothing was taken"
    path = other / "Q" / "b.ipynb"
    write_notebook(path)
    mine("pull", remote.url, "--as", path, **remote.env)
    told = mine("show", path, "two")
    assert "variables: in part" in told and "no package has onlyona" in told
