"""A person at JupyterLab and at Notebook 7: a real server, a real Chromium, our kernel.

The page is never waited for by time: each step waits for a text or an attribute to appear.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("jupyterlab", reason="needs JupyterLab")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
TOKEN = "browser-test"
PATIENCE_MS = 60_000
FRONT_ENDS = {"lab": "lab/tree", "notebook": "notebooks"}  # name and folder: path of the page
CHROMIUM_OPTIONS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]

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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server whose folders hold a notebook each for our kernel."""
    root = tmp_path_factory.mktemp("lab")
    notebooks, home = root / "notebooks", root / "home"
    notebooks.mkdir()
    home.mkdir()
    document = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in CELLS.values()],
        metadata={"kernelspec": {"name": "python3-timetravel", "display_name": "x"}},
    )
    for name in FRONT_ENDS:
        (notebooks / name).mkdir()
        nbformat.write(document, notebooks / name / "session.ipynb")
    ready = root / "server-info"
    settings = home / ".jupyter" / "labconfig"
    settings.mkdir(parents=True)
    news = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    (settings / "page_config.json").write_text(json.dumps(news))
    ready = root / "server-info"
    env = {**os.environ, "HOME": str(home), "JUPYTER_RUNTIME_DIR": str(ready)}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += ["--ServerApp.port=0", f"--IdentityProvider.token={TOKEN}"]
    with (root / "server.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=notebooks, env=env, stdout=log, stderr=log)
    try:
        yield wait_for_address(process, ready, root / "server.log")
    finally:
        process.terminate()
        process.wait(timeout=30)


def wait_for_address(process: subprocess.Popen[bytes], folder: Path, log: Path) -> str:
    """The address that the server writes down when it listens."""
    info = folder / f"jpserver-{process.pid}.json"
    while True:
        if info.exists() and (text := info.read_text()):
            return str(json.loads(text)["url"])
        try:
            process.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            continue
        pytest.fail(log.read_text())


@pytest.fixture(params=FRONT_ENDS)
def page(server: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """The notebook, open in a front end, its kernel started."""
    if CHROMIUM is None:
        pytest.skip("missing ability: Chromium")
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_OPTIONS)
        page = browser.new_page(viewport={"width": 1280, "height": 1600})
        page.set_default_timeout(PATIENCE_MS)
        path = f"{FRONT_ENDS[request.param]}/{request.param}/session.ipynb"
        page.goto(f"{server}{path}?token={TOKEN}")
        page.locator(".jp-Notebook .jp-CodeCell").nth(len(CELLS) - 1).wait_for()
        page.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]').wait_for()
        try:
            yield page
        finally:
            page.screenshot(path=str(tmp_path / "end.png"))
            browser.close()


def cell(page: Any, name: str) -> Any:
    return page.locator(".jp-Notebook .jp-CodeCell").nth(list(CELLS).index(name))


def start(page: Any, name: str) -> Any:
    """Run a cell as a person would, and return where its output appears."""
    place = cell(page, name)
    place.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    return place.locator(".jp-OutputArea-output")


def expect_output(page: Any, name: str, text: str) -> None:
    playwright.expect(start(page, name).first).to_contain_text(text, timeout=PATIENCE_MS)


def test_a_session(page: Any) -> None:
    """One story, as the steps build on one another."""
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
