"""Worlds for the tests of the native library."""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import native_build
from native_harness import World


@pytest.fixture(params=[pytest.param("root", marks=pytest.mark.root), "user", "plain"])
def any_world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Each kind of world: old ids as root, as an ordinary user, and new ids."""
    yield from lend(request.param)


@pytest.fixture
def world() -> Iterator[World]:
    """The world that users have: a user and pid namespace."""
    yield from lend("user")


@pytest.fixture(params=[pytest.param("root", marks=pytest.mark.root), "user"])
def mounting_world(request: pytest.FixtureRequest) -> Iterator[World]:
    """The worlds with mounts of their own."""
    yield from lend(request.param)


@pytest.fixture
def plain_world() -> Iterator[World]:
    """No namespace and no capability."""
    yield from lend("plain")


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    """A folder that an ordinary user reaches, and that outlives a world."""
    with tempfile.TemporaryDirectory(prefix="tt_native_", dir="/tmp") as name:
        os.chmod(name, 0o777)
        yield pathlib.Path(name)


def lend(name: str) -> Iterator[World]:
    made = native_build.make_world(name)
    yield made
    made.close()


def pytest_sessionfinish() -> None:
    native_build.clean_up()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "libraries: needs third-party libraries such as polars")
    config.addinivalue_line("markers", "storm: freezes many times under load")
