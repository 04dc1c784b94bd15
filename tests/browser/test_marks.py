"""Cells that are changed after they ran, and a console beside its notebook."""

from __future__ import annotations

from typing import Any

import pytest
from browsing import Server
from walking import PANEL, Walker

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("jupyterlab", reason="needs JupyterLab")

CELLS = ["x = 1; print('x', x)", "x += 1; print('x', x)", "x += 1; print('x', x)"]

KINDS = """\
() => [...jupyterapp.shell.currentWidget.content.widgets].map(cell => cell.model.type)"""

NOTE_RESTORES = f"""\
() => {{
  window.heard = [];
  for (const {{ timeline }} of {PANEL}._options.follower.subjects) {{
    timeline.restored.connect(() => window.heard.push(timeline));
  }}
}}"""


@pytest.fixture
def person(server: Server, page: Any) -> Walker:
    return Walker(page, server, playwright.expect)


def opened(person: Walker, server: Server, path: str) -> None:
    person.open("lab", server.notebook(path, CELLS), 3)
    person.show_panel()
    for at in range(3):
        person.run(at, f"x {at + 1}")
        person.row(at + 1, head="true").wait_for()


def active(person: Walker, index: int) -> None:
    """Make a cell the active one, in command mode."""
    person.cell(index).locator(".jp-InputPrompt").click()
    person.page.locator(".jp-Notebook.jp-mod-commandMode").wait_for()


def test_cells_that_show_nothing_of_an_undone_run_are_not_marked(
    person: Walker, server: Server
) -> None:
    opened(person, server, "marks/cleared.ipynb")
    person.restore(1)
    person.undone(2)
    active(person, 2)
    person.page.keyboard.press("m")  # a cell of text has no output
    person.undone(1)
    person.execute("notebook:clear-all-cell-outputs")
    person.undone(0)
    # a second page that reads the file, which was never saved, has no outputs either
    person.execute("docmanager:reload")
    accept = person.page.locator(".jp-Dialog button.jp-mod-accept, .jp-Dialog button.jp-mod-warn")
    accept.last.click()
    person.expect(person.page.locator(".jp-Notebook .jp-CodeCell")).to_have_count(3)
    person.undone(0)
    person.run(1, "x 2")
    person.row(5, head="true").wait_for()


def test_a_copy_of_an_undone_cell_is_marked(person: Walker, server: Server) -> None:
    """It shows the same output; until it has run, or where the run is not an undone one."""
    opened(person, server, "marks/copied.ipynb")
    person.restore(1)
    person.undone(2)
    active(person, 2)
    person.execute("notebook:copy-cell")
    person.execute("notebook:paste-cell-below")
    person.expect(person.page.locator(".jp-Notebook .jp-CodeCell")).to_have_count(4)
    person.undone(3)
    active(person, 0)
    person.execute("notebook:copy-cell")
    person.execute("notebook:paste-cell-below")
    person.expect(person.page.locator(".jp-Notebook .jp-CodeCell")).to_have_count(5)
    person.undone(3)
    person.run(4, "x 2")
    person.row(5, head="true").wait_for()
    person.undone(2)


def test_a_cell_of_another_type_is_put_back_and_new_ones_stay(
    person: Walker, server: Server
) -> None:
    opened(person, server, "marks/types.ipynb")
    person.kept(3)
    active(person, 2)
    person.page.keyboard.press("m")
    person.page.wait_for_function(f"() => ({KINDS})().join() === 'code,code,markdown'")
    person.choose(3, "The Notebook as It Was")
    person.page.wait_for_function(f"() => ({KINDS})().join() === 'code,code,code'")
    person.expect(person.cell(2)).to_contain_text("x 3")
    # a cell that is made before that is taken back stays, below
    active(person, 0)
    person.page.keyboard.press("b")
    person.page.keyboard.press("Enter")
    person.page.locator(".jp-Cell.jp-mod-active .cm-editor.cm-focused").wait_for()
    person.page.keyboard.type("# my notes")
    person.notified("The cells are as they were").get_by_text("Undo").click()
    person.page.wait_for_function(f"() => ({KINDS})().join() === 'code,code,markdown,code'")
    person.expect(person.page.locator(".jp-Notebook .jp-Cell").last).to_contain_text("# my notes")


def test_a_notification_undoes_its_own_restore(person: Walker, server: Server) -> None:
    opened(person, server, "marks/own.ipynb")
    person.restore(2)
    person.restore(1)
    person.execute("apputils:display-notifications")  # where they stay
    first = person.page.locator(".jp-Notification-List-Item", has_text="restored #2")
    with person.going_back():
        first.get_by_role("button", name="Undo").click()
    person.row(4, head="true").wait_for()
    assert person.value("x") == "3"


def test_a_notebook_and_its_console_are_told_once(person: Walker, server: Server) -> None:
    """Whoever of the two asks; also when neither does."""
    opened(person, server, "marks/beside.ipynb")
    person.execute("notebook:create-console")
    prompt = person.page.locator(".jp-CodeConsole-promptCell .cm-content")
    prompt.click()
    person.page.wait_for_function(
        f"() => {{ const all = [...{PANEL}._options.follower.subjects];"
        " return all.length === 2 && all.every(({ timeline }) => timeline.state === 'ready'); }"
    )
    person.page.evaluate(NOTE_RESTORES)
    for count, restore in enumerate((None, 2), start=1):
        if restore is None:
            prompt.click()
            person.page.keyboard.type("%restore 1")
            person.page.keyboard.press("Shift+Enter")
            person.row(1, head="true").wait_for()
        else:
            person.restore(restore)
        person.page.wait_for_function("count => window.heard.length === 2 * count", arg=count)
        person.notified(f"restored #{restore or 1}").wait_for()
        person.expect(person.page.locator(".Toastify__toast")).to_have_count(1)
        person.dismiss()
