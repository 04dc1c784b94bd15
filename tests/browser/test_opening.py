"""A notebook that is opened after its kernel has ended: its last session can go on."""

from __future__ import annotations

from typing import Any

import pytest
from browsing import FRONT_ENDS, TOKEN, Server
from walking import Walker

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("jupyterlab", reason="needs JupyterLab")


@pytest.fixture
def person(server: Server, page: Any) -> Walker:
    return Walker(page, server, playwright.expect)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_past_session_is_resumed_on_opening(
    person: Walker, server: Server, front_end: str
) -> None:
    """By the notification that opening brings, or by the panel."""
    cells = ["kept = [1]; print('kept', kept)", "kept.append(2); print('kept', kept)"]
    path = server.notebook(f"opening-{front_end}/o.ipynb", cells)
    person.open(front_end, path, 2)
    person.show_panel()
    person.run(0, "kept [1]")
    person.run(1, "kept [1, 2]")
    person.row(2, head="true").locator(".jp-mod-durable").wait_for()
    person.save()
    for by_panel in (False, True):
        person.page.goto("about:blank")
        end_kernel(person, server, path)
        person.open(front_end, path, 2)
        number = person.notified("its last session can go on from #")
        if by_panel:
            person.show_panel()
            person.panel.locator('[data-command="timetravel:resume"]').click()
        else:
            number.get_by_text("Resume").click()
            person.show_panel()
        person.notified("restored #").wait_for()
        person.expect(person.notified("its last session can go on")).to_have_count(0)
        assert person.value("kept") == "[1, 2]"
        # it is offered no more, and cells go on from there
        person.expect(person.panel.locator('[data-command="timetravel:resume"]')).to_have_count(0)
        person.panel.locator('[data-head="true"] .jp-mod-durable').wait_for()


def end_kernel(person: Walker, server: Server, path: str) -> None:
    """Shut the notebook's session down, as the list of running kernels does."""
    headers = {"Authorization": f"token {TOKEN}"}
    sessions = f"{server.url}api/sessions"
    (id,) = (
        session["id"]
        for session in person.page.request.get(sessions, headers=headers).json()
        if session["path"] == path
    )
    assert person.page.request.delete(f"{sessions}/{id}", headers=headers).status == 204
