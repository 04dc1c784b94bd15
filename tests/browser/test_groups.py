"""Several notebooks as one, from the sidebar: captured, previewed, taken back, undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import PATIENCE_MS, TOKEN, Notebook, Server
from jupyter_client import BlockingKernelClient

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("jupyterlab", reason="needs JupyterLab")

HEADERS = {"Authorization": f"token {TOKEN}"}
Cell = Callable[[str], str]


@pytest.fixture
def person(server: Server, page: Any) -> Notebook:
    return Notebook(page, server, playwright.expect)


@pytest.fixture
def other(server: Server, page: Any) -> Iterator[Cell]:
    """Runs a cell of the notebook b.ipynb, which is open nowhere, and gives what it prints."""
    path = server.notebook("grouped/b.ipynb", ["y = 0"])
    model = {"path": path, "name": "b.ipynb", "type": "notebook"}
    model["kernel"] = {"name": "python3-timetravel"}  # type: ignore[assignment]
    made = page.request.post(f"{server.url}api/sessions", data=model, headers=HEADERS)
    file = server.runtime / f"kernel-{made.json()['kernel']['id']}.json"
    client = BlockingKernelClient(connection_file=str(file))
    client.load_connection_file()
    client.start_channels(hb=False)

    def run(code: str) -> str:
        printed: list[str] = []
        client.execute_interactive(
            code,
            timeout=PATIENCE_MS / 1000,
            output_hook=lambda message: printed.append(message["content"].get("text", "")),
        )
        return "".join(printed).strip()

    client.wait_for_ready(timeout=PATIENCE_MS / 1000)
    yield run
    client.stop_channels()


def test_a_group_from_the_sidebar(
    person: Notebook, server: Server, other: Cell, tmp_path: Path
) -> None:
    """The badge, the members on hover and in the details, the preview of each, and the undo."""
    name = "grouped"
    path = server.notebook(f"{name}/a.ipynb", ["x = 1; print('one', x)", "x = 2", "print('is', x)"])
    page = person.page
    person.open("lab", path, 3)
    person.show_panel()
    person.run(0, "one 1")
    person.row(1, head="true").wait_for()
    assert other("y = 1; print(y)") == "1"

    # a menu shows the command once the notebook is in a group
    button = page.locator(".jp-TimeTravel-toolbarButton").first
    asks = page.get_by_role("menuitem", name=f"Checkpoint the Group {name}…")
    button.click()
    page.get_by_role("menuitem", name="Checkpoint Now…").wait_for()
    person.expect(asks).to_have_count(0)
    page.keyboard.press("Escape")
    members = {"group": name, "members": [f"{name}/a.ipynb", f"{name}/b.ipynb"]}
    groups = f"{server.url}api/timetravel/groups"
    assert page.request.post(groups, data=members, headers=HEADERS).status == 201
    page.wait_for_function(
        "name => jupyterapp.commands.label('timetravel:checkpoint-group').includes(name)", arg=name
    )
    button.click()
    asks.click()
    page.locator(".jp-Dialog input").fill("before")
    person.accept()
    person.notified("G1 holds a #2, b #2").wait_for()

    badge = person.row(2).locator(".jp-mod-group")
    person.expect(badge).to_have_text(name)
    assert badge.get_attribute("title") == f"Group {name}, G1: a #2, b #2"
    person.expect(person.row(1).locator(".jp-mod-group")).to_have_count(0)
    person.row(2).click()
    details = person.panel.locator(".jp-TimeTravel-group")
    person.expect(details).to_contain_text("G1: a #2, b #2")
    person.panel.locator("table[data-loaded]").wait_for()
    assert not person.serious_in_a_theme("#jp-timetravel-panel", tmp_path, "badge")

    # its restore offers the others as well, and tells what becomes of each
    person.run(1)
    person.run(2, "is 2")
    person.row(4, head="true").wait_for()
    assert other("y = 2; print(y)") == "2"
    person.row(2).locator(".jp-TimeTravel-restore").click()
    # a dialog gives its default button the focus when it is ready
    person.expect(page.locator(".jp-Dialog button.jp-mod-accept").last).to_be_focused()
    whole = page.get_by_role("button", name="Take the Whole Group Back…")
    whole.focus()
    page.screenshot(path=str(tmp_path / f"{name}-restore.png"))
    page.keyboard.press("Enter")
    for member, variable in (("a", "x"), ("b", "y")):
        section = page.locator(f'.jp-Dialog section[data-member="{member}"]')
        section.locator(f'tr[data-name="{variable}"][data-sign="~"]').wait_for()
    assert not person.serious_in_a_theme(".jp-Dialog-content", tmp_path, "preview")
    page.keyboard.press("Enter")  # the button in front is the one that does it
    person.notified(f"group {name}: all went back to G1").wait_for()
    person.row(2, head="true").wait_for()
    assert other("print(y)") == "1"
    person.run(2, "is 1")

    # one undo takes all of them back
    person.notified(f"group {name}: all went back to G1").get_by_text("Undo").click()
    person.panel.locator('.jp-TimeTravel-row[data-head="true"] .jp-mod-group').wait_for()
    person.expect(person.panel).to_have_attribute("data-running", "false")
    assert other("print(y)") == "2"
    person.run(2, "is 2")
