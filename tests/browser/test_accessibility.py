"""No serious finding of axe in what the sidebar opens: dialogs, menus, marks, in both themes."""

from __future__ import annotations

from typing import Any

import pytest
from browsing import FRONT_ENDS, Server
from walking import Walker

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("jupyterlab", reason="needs JupyterLab")

CELLS = [
    "a = 1; open('a', 'w').write('1\\n'); print('a', a)",
    "a = 2; open('a', 'w').write('2\\n'); print('a', a)",
    "print('is', a)",
]


@pytest.fixture
def person(server: Server, page: Any) -> Walker:
    return Walker(page, server, playwright.expect)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_no_serious_finding(person: Walker, server: Server, front_end: str) -> None:
    person.open(front_end, server.notebook(f"axe-{front_end}/a.ipynb", CELLS), len(CELLS))
    person.show_panel()
    person.run(0, "a 1")
    person.run(1, "a 2")
    person.row(2, head="true").wait_for()
    person.row(1).locator(".jp-mod-durable").wait_for()
    found = []

    def look(name: str, selector: str) -> None:
        person.page.locator(selector).first.wait_for()
        found.extend((theme, name, *one) for one in person.serious(selector))

    def look_at_menu(name: str) -> None:
        look(name, ".lm-Menu-item")  # the list around them is Lumino's own, with its own findings
        person.page.keyboard.press("Escape")
        person.expect(person.page.locator(".lm-Menu")).to_have_count(0)

    for theme in person.themed():  # noqa: B007 (it is told by look)
        person.details(2)
        look("panel", "#jp-timetravel-panel")
        for name in ("Go Back to It", "Replay from Here…", "Label…", "Delete…"):
            person.choose(1, name)
            look(name, ".jp-Dialog-content")
            person.refuse()
        person.choose(2, "What It Changed")
        person.dialog.locator('tr[data-name="a"] button').first.click()
        look("differences", ".jp-Dialog-content")
        person.refuse()
        person.panel.locator('[data-command="timetravel:checkpoint"]').click()
        look("checkpoint", ".jp-Dialog-content")
        person.refuse()
        person.row(1).click(button="right")
        look_at_menu("menu of a row")
        person.page.locator(".jp-TimeTravel-toolbarButton").first.click()
        look_at_menu("menu of the clock")

        person.row(1).locator(".jp-TimeTravel-restore").click()
        with person.going_back():
            person.accept()
        person.undone(1)
        look("panel after a restore", "#jp-timetravel-panel")
        person.cell(1).hover()
        look("mark", ".jp-TimeTravel-mark")
        look("button of a cell", ".jp-Cell.jp-mod-active > .jp-TimeTravel-before")
        with person.going_back():
            person.panel.locator('[data-command="timetravel:undo"]').click()
        person.undone(0)
    assert found == []
