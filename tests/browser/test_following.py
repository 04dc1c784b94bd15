"""Case ui-01 to its end: what is in front may be a Markdown cell, a terminal or a console."""

from __future__ import annotations

from typing import Any

import pytest
from browsing import Server
from walking import Walker

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("jupyterlab", reason="needs JupyterLab")
pytest.importorskip("jupyter_server_terminals", reason="needs terminals")

WATCH_TABS = """\
() => {
  window.spun = new Set();
  for (const { title } of jupyterapp.shell.widgets('main')) {
    title.changed.connect(({ className, label }) => {
      if (className.includes('jp-TimeTravel-running')) {
        window.spun.add(label);
      }
    });
  }
}"""
"""Not the page itself: a restore may be over before a busy browser draws."""


@pytest.fixture
def person(server: Server, page: Any) -> Walker:
    return Walker(page, server, playwright.expect)


def test_ui_01_side_by_side(person: Walker, server: Server) -> None:
    """The panel follows clicks into cells of either, and stays with the last in a terminal."""
    cells = ["big = bytearray(200_000_000); va = 1; print('va', va)", "va = 2; print('va', va)"]
    a = server.notebook("side/a.ipynb", cells)
    b = server.notebook("side/b.ipynb", ["vb = 1; print('vb', vb)", "print('is', vb)"])
    page = person.page

    def shows(name: str, text: str) -> None:
        person.panel.locator(f'h2[data-document="{name}"]').wait_for()
        person.expect(person.panel.locator('[data-head="true"]')).to_contain_text(text)

    person.open("lab", a, 2)
    person.show_panel()
    person.run(0, "va 1")
    person.run(1, "va 2")
    person.row(2, head="true").wait_for()
    # a Markdown cell below
    page.keyboard.press("Escape")
    page.keyboard.press("b")
    page.keyboard.press("m")
    markdown = page.locator(".jp-NotebookPanel .jp-MarkdownCell")
    markdown.wait_for()
    person.execute("docmanager:open", path=b, options={"mode": "split-right"})
    person.panel.locator('h2[data-document="b.ipynb"]').wait_for()
    person.in_state("ready")
    first, second = page.locator(".jp-NotebookPanel").all()
    of_b = second if "vb" in second.inner_text() else first
    of_b.locator(".jp-CodeCell").first.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    shows("b.ipynb", "vb = 1")

    markdown.locator(".jp-InputPrompt").first.click()
    shows("a.ipynb", "va = 2")
    person.execute("terminal:create-new")
    page.locator(".jp-Terminal").wait_for()
    page.locator(".jp-Terminal .xterm").click()
    shows("a.ipynb", "va = 2")  # the last notebook

    # a restore of a is a's own, while b is in front
    page.evaluate(WATCH_TABS)
    person.row(1).locator(".jp-TimeTravel-restore").click()
    person.accept()
    of_b.locator(".jp-CodeCell").last.locator(".cm-content").click()
    person.panel.locator('h2[data-document="b.ipynb"]').wait_for()
    person.notified("a.ipynb: restored #1").wait_for()
    shows("b.ipynb", "vb = 1")
    assert page.evaluate("() => [...window.spun]") == ["a.ipynb"]
    person.expect(page.locator(".jp-TimeTravel-running")).to_have_count(0)
    assert person.value("vb") == "1"
    markdown.locator(".jp-InputPrompt").first.click()
    shows("a.ipynb", "va = 1")
    assert person.value("va") == "1"
