"""What a person does in JupyterLab is tried in Notebook 7 too, where other parts are around it."""

from __future__ import annotations

from typing import Any

import pytest
from browsing import Server
from walking import Walker

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("notebook", reason="needs Notebook 7")

CELLS = [
    "big = bytearray(200_000_000); t = 1; open('t', 'w').write('one\\n'); print('t', t)",
    "t = 2; open('t', 'w').write('two\\n'); print('t', t)",
    "print('is', t)",
]


@pytest.fixture
def person(server: Server, page: Any) -> Walker:
    return Walker(page, server, playwright.expect)


def test_a_walk_through_notebook_7(person: Walker, server: Server) -> None:
    """By hand, differences, a reload in the middle of a restore, a restart."""
    person.open("notebook", server.notebook("seven/s.ipynb", CELLS), len(CELLS))
    # by the menu, as it is at the right edge there
    person.from_menu("Show the Timeline", "Kernel")
    person.in_state("ready")
    person.run(0, "t 1")
    person.run(1, "t 2")
    person.row(2, head="true").wait_for()
    person.expect(person.row(2).locator(".jp-TimeTravel-changed")).to_have_text("1 variable1 file")

    person.cell(0).locator(".jp-InputPrompt").first.click()
    person.page.keyboard.press("Alt+Shift+C")
    person.dialog.locator("input").fill("in Notebook 7")
    person.accept()
    person.expect(person.row(3, head="true")).to_contain_text("in Notebook 7")
    person.choose(3, "Pin")
    person.row(3).locator(".jp-mod-pinned").wait_for()

    person.choose(1, "Compare with the Present")
    person.dialog.locator('tr[data-name="t"][data-sign="~"]').first.wait_for()
    files = person.dialog.locator('section[data-kind="files"]')
    files.locator('tr[data-name="t"] button').click()
    person.expect(files.locator(".jp-TimeTravel-patch")).to_contain_text("-one\n+two\n")
    person.refuse()

    # the page is loaded anew while it goes back
    person.save()
    person.row(1).locator(".jp-TimeTravel-restore").click()
    person.accept()
    person.page.reload()
    person.wait(len(CELLS))
    person.show_panel()
    person.row(1, head="true").wait_for()
    person.undone(1)
    assert person.value("t") == "1"
    safeties = person.panel.locator(".jp-TimeTravel-row", has_text="before the restore")
    person.expect(safeties).to_have_count(1)
    person.run(2, "is 1")

    # a restart: what was is there, and goes on
    head = person.panel.locator('.jp-TimeTravel-row[data-head="true"]')
    person.expect(head).to_contain_text("print('is', t)")
    head.locator(".jp-mod-durable").wait_for()
    person.execute("kernelmenu:restart")
    person.accept()
    person.panel.locator(".jp-mod-boundary.jp-TimeTravel-badge").first.wait_for()
    person.panel.locator('[data-command="timetravel:resume"]').click()
    person.notified("restored #").wait_for()
    person.run(2, "is 1")
    person.restore(1)
    person.run(2, "is 1")
