"""What a row tells, the badge of undone cells, the export of a checkpoint, and a server part that
does not fit: in one message."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from browsing import FRONT_ENDS, PATIENCE_MS, Notebook, Server, running_server

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("jupyterlab", reason="needs JupyterLab")

MAIN = "import sys; from jupyter_timetravel.cli import main; sys.exit(main())"
HOSTILE = "<img src=x onerror='window.hit = 1'> **join** [a](javascript:hit=1) \u202e"
CELLS = [
    f"a = list(range(100_000)); print('a', len(a))  # {HOSTILE}",
    "b = 2; print('b', b)",
    "c = 3; print('c', c)",
]


@pytest.fixture
def person(server: Server, page: Any) -> Notebook:
    return Notebook(page, server, playwright.expect)


def test_a_row_tells_label_comment_first_line_and_size(
    person: Notebook, server: Server, tmp_path: Path
) -> None:
    path = server.notebook("rows.ipynb", CELLS)
    person.open("lab", path, 3)
    person.show_panel()
    person.run(0, "a 100000")
    person.row(1, head="true").wait_for()
    person.choose(1, "Label…")
    person.page.locator(".jp-Dialog input").fill("raw data")
    person.accept()
    row = person.row(1)
    person.expect(row.locator(".jp-TimeTravel-name.jp-mod-label")).to_have_text("raw data")
    person.expect(row.locator(".jp-TimeTravel-title")).to_have_text(CELLS[0])

    # the size is known when the variables are written; pointing at it tells what it is made of
    row.locator(".jp-mod-durable").wait_for()
    size = row.locator(".jp-TimeTravel-size")
    person.expect(size).to_contain_text("B")
    assert size.inner_text().removeprefix("· ")[0].isdigit()
    assert "Variables, on the disk: " in size.get_attribute("title")

    person.panel.locator('[data-command="timetravel:checkpoint"]').click()
    person.page.locator(".jp-Dialog input").fill(f"before {HOSTILE}")
    person.accept()
    person.expect(person.row(2).locator(".jp-TimeTravel-name")).to_have_text(f"before {HOSTILE}")
    person.run(1, "b 2")
    person.run(2, "c 3")
    person.row(4, head="true").wait_for()
    person.restore(1)
    person.undone(2)
    for selector, name in (
        ("#jp-timetravel-panel", "rows"),
        (".jp-TimeTravel-undoneBadge", "badge"),
    ):
        assert not person.serious_in_a_theme(selector, tmp_path, name)

    # what others have written is text, wherever it is shown
    person.row(2).click()
    person.panel.locator("table[data-loaded]").wait_for()
    assert person.page.evaluate("() => 'hit' in window") is False
    assert person.panel.locator("img, a").count() == 0

    # the heading follows a new name
    renamed = path.replace("rows", "renamed")
    person.page.evaluate(
        "([from, to]) => jupyterapp.serviceManager.contents.rename(from, to)", [path, renamed]
    )
    person.expect(person.panel.locator("h2").first).to_have_text(renamed)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_badge_counts_undone_cells(
    person: Notebook, server: Server, front_end: str, tmp_path: Path
) -> None:
    """It leads to each of them, and is gone when they have run again."""
    path = server.notebook(f"{front_end}/badge.ipynb", CELLS)
    person.open(front_end, path, 3)
    badge = person.page.locator(".jp-TimeTravel-undoneBadge")
    person.expect(badge).to_be_hidden()
    person.show_panel()
    for index, text in enumerate(["a 100000", "b 2", "c 3"]):
        person.run(index, text)
    person.row(3, head="true").wait_for()
    person.restore(1)
    button = badge.get_by_role("button", name="2 undone")
    button.wait_for()
    person.expect(badge).to_have_attribute("role", "status")
    person.page.screenshot(path=str(tmp_path / "badge.png"))
    person.cell(0).locator(".jp-InputPrompt").first.click()
    for active in (1, 2, 1):
        button.click()
        person.expect(person.cell(active)).to_have_class(re.compile(r"\bjp-mod-active\b"))
    # one that is deleted is not counted, as it is not to be seen
    person.page.keyboard.press("Escape")
    person.cell(1).locator(".jp-InputPrompt").first.click()
    person.page.keyboard.press("d")
    person.page.keyboard.press("d")
    badge.get_by_role("button", name="1 undone").wait_for()
    person.run(1, "c 3")
    person.undone(0)
    person.expect(badge).to_be_hidden()


def test_a_checkpoint_is_downloaded_and_imported(
    person: Notebook, server: Server, tmp_path: Path
) -> None:
    path = server.notebook("export.ipynb", CELLS[:1])
    person.open("lab", path, 1)
    person.show_panel()
    person.run(0, "a 100000")
    person.row(1).locator(".jp-mod-durable").wait_for()
    person.choose(1, "Export the Checkpoint…")
    with person.page.expect_download() as downloading:
        person.accept()
    assert downloading.value.suggested_filename == "export #1.ttl"
    person.notified("Downloaded: export #1.ttl").wait_for()
    file = tmp_path / "export.ttl"
    downloading.value.save_as(file)
    command = [sys.executable, "-c", MAIN, "import", str(file), "--json"]
    done = subprocess.run(
        [*command, "--store", str(tmp_path / "store")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


def test_a_sidebar_of_another_version_says_so_once(
    browser: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Both versions and what mends it; groups and cells go on; dismissed, it stays away."""
    from jupyter_core.paths import jupyter_path
    from jupyterlab_server.config import get_federated_extensions

    installed = get_federated_extensions(jupyter_path("labextensions"))["jupyter-timetravel"]
    root = tmp_path_factory.mktemp("versions")
    prefix = root / "prefix"
    (prefix / "lib" / "python3" / "site-packages").mkdir(parents=True)
    copy = prefix / "share" / "jupyter" / "labextensions" / "jupyter-timetravel"
    shutil.copytree(installed["ext_path"], copy)
    about = json.loads((copy / "package.json").read_text())
    (copy / "package.json").write_text(json.dumps({**about, "version": "0.0.1"}))
    with running_server(root / "server", prefix) as server:
        context = browser.new_context(viewport={"width": 1600, "height": 1200})
        try:
            page = context.new_page()
            page.set_default_timeout(PATIENCE_MS)
            person = Notebook(page, server, playwright.expect)
            path = server.notebook("versions.ipynb", CELLS)
            person.open("lab", path, 3)
            person.show_panel()
            problem = person.panel.locator(".jp-TimeTravel-problem")
            person.expect(problem).to_contain_text("sidebar is of version 0.0.1")
            person.expect(problem).to_contain_text(f"of version {installed_version()}")
            person.expect(problem.locator("code")).to_contain_text("pip install")
            person.run(0, "a 100000")
            person.row(1, head="true").wait_for()
            assert not person.serious("#jp-timetravel-panel")
            page.screenshot(path=str(root / "versions.png"))
            problem.get_by_role("button").click()
            person.expect(problem).to_have_count(0)
            with page.expect_response("**/jupyter-timetravel/package.json") as asked:
                page.reload()
            assert asked.value.json()["version"] == "0.0.1"
            person.wait(3)
            person.show_panel()
            person.row(1, head="true").wait_for()
            # the export is offered when the server part has answered, the versions compared
            person.row(1).click()
            person.panel.locator('[data-command="timetravel:export-checkpoint"]').wait_for()
            person.expect(problem).to_have_count(0)
        finally:
            context.close()


def installed_version() -> str:
    from importlib.metadata import version

    return version("jupyter_timetravel")


def test_what_a_kernel_lacks_is_said(person: Notebook, server: Server) -> None:
    """Without dill on the checkpoint, with the Python; without all of it where there is no list."""
    specs = server.folder.parent / "home" / ".local" / "share" / "jupyter" / "kernels"
    (specs / "bare").mkdir(parents=True)
    argv = [sys.executable, "-I", "-S", "-m", "kernel_runtime", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "Bare", "language": "python"}
    (specs / "bare" / "kernel.json").write_text(json.dumps(spec))
    cells = ["import sys; sys.modules['dill'] = None", "real = int.__dict__['real']; print('made')"]
    path = server.notebook("lacks/dill.ipynb", cells)
    person.open("lab", path, 2)
    person.show_panel()
    person.run(0)
    person.run(1, "made")
    partial = person.row(2).locator(".jp-mod-partial")
    partial.wait_for()
    hint = partial.get_attribute("title")
    assert "real: a getset descriptor cannot be kept without the package dill" in hint
    assert f"which {sys.executable} does not have" in hint

    person.execute("docmanager:open", path=server.notebook("lacks/all.ipynb", ["1"], "bare"))
    person.in_state("absent")
    told = person.panel.get_by_role("alert")
    person.expect(told).to_contain_text("jupyter timetravel doctor")

    # one that a person has shut down has not died
    person.execute("docmanager:open", path=path)
    person.in_state("ready")
    person.page.evaluate("() => void jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    person.in_state("absent")
    person.expect(told).to_have_count(0)
