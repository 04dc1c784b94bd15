"""A restore from the sidebar while a cell runs: the cell is interrupted, or nothing is done."""

from __future__ import annotations

from typing import Any

import pytest
from browsing import FRONT_ENDS, Notebook, Server

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("jupyterlab", reason="needs JupyterLab")

ENDLESS = """\
import time
x = 2; open('made', 'w').close(); print('begun', flush=True)
while True: time.sleep(0.1)"""
STUBBORN = """\
import os, time
x = 2; print('begun', flush=True)
while not os.path.exists('go'):
    try: time.sleep(0.1)
    except KeyboardInterrupt: print('not now', flush=True)
print('ended')"""
LOOK = "print('now', x, __import__('os').path.exists('made'))"


@pytest.fixture
def person(server: Server, page: Any) -> Notebook:
    return Notebook(page, server, playwright.expect)


def prompts(person: Notebook, text: str, *cells: int) -> None:
    """Wait until these cells have this prompt."""
    for index in cells:
        person.expect(person.cell(index).locator(".jp-InputPrompt").first).to_have_text(text)


def asked_and_told(person: Notebook, number: int) -> None:
    """Click a row's button; the dialog says that a cell is going to be interrupted."""
    person.row(number).locator(".jp-TimeTravel-restore").click()
    person.page.locator(".jp-Dialog [data-busy]").wait_for()


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_it_interrupts_the_cell_and_those_that_wait(
    person: Notebook, server: Server, front_end: str
) -> None:
    """Also after a reload of the page in the middle of the run."""
    cells = ["x = 1; print('x', x)", ENDLESS, "x = 3; print('never')", LOOK]
    path = server.notebook(f"run-{front_end}/run.ipynb", cells)
    person.open(front_end, path, len(cells))
    person.show_panel()
    person.run(0, "x 1")
    person.row(1, head="true").wait_for()
    person.run(1, "begun")
    person.run(2)
    prompts(person, "[*]:", 1, 2)

    # asked, and not done: it runs on
    asked_and_told(person, 1)
    person.page.locator(".jp-Dialog button.jp-mod-reject").click()
    prompts(person, "[*]:", 1, 2)

    asked_and_told(person, 1)
    person.accept()
    person.notified("restored #1").wait_for()
    person.row(1, head="true").wait_for()
    person.expect(person.panel).to_have_attribute("data-running", "false")
    person.expect(person.cell(1)).to_contain_text("KeyboardInterrupt")
    prompts(person, "[2]:", 1)
    prompts(person, "[ ]:", 2)  # it never ran
    person.wait(len(cells))
    person.run(3, "now 1 False")
    person.expect(person.cell(2).locator(".jp-OutputArea-output")).to_have_count(0)
    person.row(3, head="true").wait_for()

    # the page is loaded anew while the cell runs
    person.save()
    person.run(1, "begun")
    prompts(person, "[*]:", 1)
    person.page.reload()
    person.cell(len(cells) - 1).wait_for()
    person.show_panel()  # it does not wait for the cell
    asked_and_told(person, 1)
    person.accept()
    person.row(1, head="true").wait_for()
    person.expect(person.panel).to_have_attribute("data-running", "false")
    person.wait(len(cells))
    for index in range(len(cells)):
        person.expect(person.cell(index).locator(".jp-InputPrompt").first).not_to_have_text("[*]:")
    person.run(3, "now 1 False")


def test_a_cell_that_does_not_end_makes_it_refuse(person: Notebook, server: Server) -> None:
    """Nothing is changed then, it is said what to do, and the cell runs to its end."""
    cells = ["x = 1; print('x', x)", STUBBORN, "print('now', x)"]
    path = server.notebook("stubborn/run.ipynb", cells)
    person.open("lab", path, len(cells))
    person.show_panel()
    person.run(0, "x 1")
    person.row(1, head="true").wait_for()
    person.run(1, "begun")
    asked_and_told(person, 1)
    person.accept()
    person.notified("did not end when it was interrupted").wait_for()
    person.expect(person.panel).to_have_attribute("data-running", "false")
    person.expect(person.cell(1)).to_contain_text("not now")
    prompts(person, "[*]:", 1)
    person.row(1, head="true").wait_for()
    (server.folder / "stubborn" / "go").touch()
    person.expect(person.cell(1)).to_contain_text("ended")
    person.row(2, head="true").wait_for()
    person.run(2, "now 2")
    # and now it can
    person.restore(1)
    person.run(2, "now 1")
