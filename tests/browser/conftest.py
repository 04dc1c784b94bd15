"""Fixtures for tests that drive a real JupyterLab and Notebook 7 in a real Chromium."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from browsing import CHROMIUM, CHROMIUM_OPTIONS, PATIENCE_MS, Server, running_server


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Jupyter server with a home of its own."""
    with running_server(tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """One Chromium for all tests."""
    if CHROMIUM is None:
        pytest.skip("missing ability: Chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    playwright.expect.set_options(timeout=PATIENCE_MS)
    with playwright.sync_playwright() as engine:
        started = engine.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_OPTIONS)
        yield started
        started.close()


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """An empty page; how it ended is in ``end.png``."""
    context = browser.new_context(viewport={"width": 1600, "height": 1200})
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE_MS)
    yield opened
    opened.screenshot(path=str(tmp_path / "end.png"))
    context.close()
