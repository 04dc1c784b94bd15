"""The command palette has all that one can do, and what cannot be read can be asked for again."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from browsing import Server
from walking import PANEL, Walker, all_commands

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

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
    """What the palette finds of ours. It goes when something else takes the focus, such as a
    notebook that is still being opened: then it is asked for again."""
    words_field = person.page.locator(".lm-CommandPalette-input")
    for _ in range(20):
        if not words_field.is_visible():  # the command would take it away again
            person.execute("apputils:activate-command-palette")
        with contextlib.suppress(playwright.TimeoutError):
            words_field.fill(words, timeout=3_000)
            return person.page.locator('.lm-CommandPalette-item[data-command^="timetravel:"]')
    raise AssertionError("the palette does not stay open")


def choose(person: Walker, words: str, name: str = "") -> None:
    """Click the first entry that is found, of those with a name if one is given."""
    for _ in range(20):
        found = entries(person, words)
        with contextlib.suppress(playwright.TimeoutError):
            found.filter(has_text=name).first.click(timeout=3_000)
            return
    raise AssertionError(f"no entry for {words!r} can be clicked")


def test_the_palette_and_trying_again(person: Walker, server: Server) -> None:
    person.open("lab", server.notebook("palette/p.ipynb", ["p = 1; print('p', p)"]), 1)
    # the panel is opened by the palette, too
    choose(person, "show the timeline")
    person.in_state("ready")
    person.run(0, "p 1")
    person.row(1, head="true").wait_for()

    # an entry about a checkpoint means the row that is selected
    person.details(1)
    wanted = all_commands(person) - NOT_IN_IT
    found = entries(person, "time travel")
    # what cannot be done now is in it, and not shown; it is drawn a moment after the words
    end = time.monotonic() + 60
    listed: set[str] = set()
    while listed != wanted and time.monotonic() < end:
        listed = set(found.evaluate_all("all => all.map(one => one.dataset.command)"))
    assert listed == wanted
    choose(person, "time travel pin", "Pin")
    pinned = person.row(1).locator(".jp-mod-pinned")
    pinned.wait_for()
    person.expect(person.row(0).locator(".jp-mod-pinned")).to_have_count(0)

    person.page.evaluate(WATCH)
    choose(person, "read the timeline anew")
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
