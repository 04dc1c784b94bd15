"""Overlays for the tests: real ones in namespaces, and layers made by hand."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from layers import Made
from overlay_world import World

from kernel_runtime.engines.overlay.markers import TRUSTED, USER, Markers


@pytest.fixture(scope="session")
def _session_world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


@pytest.fixture
def world(_session_world: World, ability: Callable[[str, bool], None]) -> World:
    """A process that can mount overlays."""
    ability(f"overlays ({_session_world.missing})", not _session_world.missing)
    return _session_world


@pytest.fixture
def markers() -> Markers:
    """Those that the kernel uses for this user."""
    return TRUSTED if os.geteuid() == 0 else USER


@pytest.fixture
def made(tmp_path: Path, markers: Markers) -> Made:
    """Layers to be made by hand."""
    return Made(tmp_path, markers)
