"""A person at JupyterLab and at Notebook 7: a real server, a real Chromium, our kernel.

The page is never waited for by time: each step waits for a text or an attribute to appear.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from browsing import FRONT_ENDS, PATIENCE_MS, Notebook, Server, edit

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("jupyterlab", reason="needs JupyterLab")

CELLS = {
    "make": (
        "from pathlib import Path\nx = [1, 2, 3]; Path('note').write_text('old'); print('made', x)"
    ),
    "wreck": "x.clear(); Path('note').unlink(); print('wrecked', x)",
    "restore": "%restore 1",
    "look": "print('back', x, Path('note').read_text())",
    "sleep": "import time\nprint('sleeping'); time.sleep(600)",
    "after": "print('goes on with', x)",
    "crash": "import os; os._exit(1)",
    "again": "print('still here', x)",
    "timeline": "%timeline",
}


def test_it_brings_nothing_that_jupyterlab_has() -> None:
    """Of what extensions share a page takes the newest: an older JupyterLab would run on ours."""
    from jupyter_core.paths import jupyter_path
    from jupyterlab_server.config import get_federated_extensions

    found = get_federated_extensions(jupyter_path("labextensions"))["jupyter-timetravel"]
    entry = Path(found["ext_path"], found["jupyterlab"]["_build"]["load"]).read_text()
    shared = set(re.findall(r'\b\w\("([@a-z/-]+)","[\d.]+",', entry))
    assert shared == {"jupyter-timetravel", "diff"}


@pytest.fixture(params=FRONT_ENDS)
def notebook(server: Server, page: Any, request: pytest.FixtureRequest) -> Any:
    """The notebook, open in a front end, its kernel started."""
    path = server.notebook(f"{request.param}/session.ipynb", list(CELLS.values()))
    Notebook(page, server, playwright.expect).open(request.param, path, len(CELLS))
    return page


def cell(page: Any, name: str) -> Any:
    return page.locator(".jp-Notebook .jp-CodeCell").nth(list(CELLS).index(name))


def start(page: Any, name: str) -> Any:
    """Run a cell as a person would, and return where its output appears."""
    place = cell(page, name)
    edit(page, place)
    page.keyboard.press("Control+Enter")
    return place.locator(".jp-OutputArea-output")


def expect_output(page: Any, name: str, text: str) -> None:
    playwright.expect(start(page, name).first).to_contain_text(text, timeout=PATIENCE_MS)


def test_a_session(notebook: Any) -> None:
    """One story, as the steps build on one another."""
    page = notebook
    title = page.locator(".jp-Toolbar-kernelName").first
    playwright.expect(title).to_contain_text("Python 3 (time travel)")

    expect_output(page, "make", "made [1, 2, 3]")
    expect_output(page, "wreck", "wrecked []")
    expect_output(page, "restore", "restored #1")
    expect_output(page, "look", "back [1, 2, 3] old")

    sleeping = start(page, "sleep")
    playwright.expect(sleeping.first).to_contain_text("sleeping")
    page.locator(
        '[data-command="notebook:interrupt-kernel"], [data-jp-item-name="interrupt"]'
    ).first.click()
    playwright.expect(sleeping.last).to_contain_text("KeyboardInterrupt")
    expect_output(page, "after", "goes on with [1, 2, 3]")

    died = start(page, "crash")
    playwright.expect(died.last).to_contain_text("back at", timeout=PATIENCE_MS)
    expect_output(page, "again", "still here [1, 2, 3]")
    # no dialog about a dead kernel was ever shown
    assert page.locator(".jp-Dialog").count() == 0

    timeline = start(page, "timeline")
    playwright.expect(timeline.first).to_contain_text("#1")
