"""The command palette has all that one can do, and what cannot be read can be asked for again."""

from __future__ import annotations

from typing import Any

import pytest
from browsing import Server
from walking import PANEL, Walker, all_commands

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("jupyterlab", reason="needs JupyterLab")

NOT_IN_IT = {"timetravel:bring"}  # needs names
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
    person.execute("apputils:activate-command-palette")
    person.page.locator(".lm-CommandPalette-input").fill(words)
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
    person.expect(found.first).to_be_visible()
    listed = {one.get_attribute("data-command") for one in found.all()}
    # JupyterLab lists what can be done now
    can = {
        id
        for id in all_commands(person)
        if person.page.evaluate("id => jupyterapp.commands.isEnabled(id)", id)
    }
    assert len(can) > 10 and can - listed == NOT_IN_IT
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
