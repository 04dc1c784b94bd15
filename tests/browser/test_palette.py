"""The command palette has all that one can do, and what cannot be read can be asked for again."""

from __future__ import annotations

from typing import Any

import pytest
from browsing import Server
from walking import PANEL, Walker, all_commands

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("jupyterlab", reason="needs JupyterLab")

NOT_IN_IT = {
    "timetravel:bring",  # needs names
    "timetravel:checkpoint-group",  # of a notebook that is in a group
}
WATCH = f"""\
() => {{
  const {{ kernel }} = {PANEL}._shown.timeline.context.session;
  const send = kernel.sendControlMessage;
  window.asked = [];
  kernel.sendControlMessage = function (message, ...more) {{
    window.asked.push(message.content.command);
    return send.call(this, message, ...more);
  }};
  window.cut = () => {{
    kernel.sendControlMessage = () => {{ throw new Error('The line is cut.'); }};
  }};
  window.mend = () => {{ kernel.sendControlMessage = send; }};
}}"""


@pytest.fixture
def person(server: Server, page: Any) -> Walker:
    return Walker(page, server, playwright.expect)


def entries(person: Walker, words: str) -> Any:
    """What the palette finds of ours."""
    words_field = person.page.locator(".lm-CommandPalette-input")
    if not words_field.is_visible():  # the command would take it away again
        person.execute("apputils:activate-command-palette")
    words_field.fill(words)
    return person.page.locator('.lm-CommandPalette-item[data-command^="timetravel:"]')


def test_the_palette_and_trying_again(person: Walker, server: Server) -> None:
    person.open("lab", server.notebook("palette/p.ipynb", ["p = 1; print('p', p)"]), 1)
    # the panel is opened by the palette, too
    entries(person, "show the timeline").first.click()
    person.in_state("ready")
    person.run(0, "p 1")
    person.row(1, head="true").wait_for()

    # an entry about a checkpoint means the row that is selected
    person.details(1)
    found = entries(person, "time travel")
    found.first.wait_for(state="attached")  # what cannot be done now is in it, and not shown
    listed = {one.get_attribute("data-command") for one in found.all()}
    assert all_commands(person) - listed == NOT_IN_IT
    entries(person, "time travel pin").filter(has_text="Pin").first.click()
    pinned = person.row(1).locator(".jp-mod-pinned")
    pinned.wait_for()
    person.expect(person.row(0).locator(".jp-mod-pinned")).to_have_count(0)

    person.page.evaluate(WATCH)
    entries(person, "read the timeline anew").first.click()
    person.page.wait_for_function("() => window.asked.includes('list')")
    person.in_state("ready")
    pinned.wait_for()

    # a connection that cannot send is told, and the button tries once more
    person.page.evaluate("() => window.cut()")
    person.execute("timetravel:refresh")
    person.in_state("failed")
    person.expect(person.panel.get_by_role("alert")).to_contain_text("The line is cut.")
    again = person.panel.get_by_role("button", name="Try again")
    again.click()
    person.in_state("failed")
    person.page.evaluate("() => window.mend()")
    again.click()
    person.in_state("ready")
    pinned.wait_for()
