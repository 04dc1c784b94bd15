"""The sidebar as a person uses it, beside real notebooks with real kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from browsing import FRONT_ENDS, Notebook, Server

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("jupyterlab", reason="needs JupyterLab")

MAKE = "from pathlib import Path\nx = [1, 2, 3]; Path('note').write_text('old'); print('made', x)"
WRECK = "x.clear(); Path('note').unlink(); y = 1; print('wrecked', x)"
LOOK = "print('seen', x, Path('note').exists())"


@pytest.fixture
def person(server: Server, page: Any) -> Notebook:
    return Notebook(page, server, playwright.expect)


def sources(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_back_and_forth(person: Notebook, server: Server, front_end: str) -> None:
    """One story: three cells, back by a click, undo, back to before a cell, a branch."""
    path = server.notebook(f"{front_end}/story.ipynb", [MAKE, WRECK, LOOK])
    person.open(front_end, path, 3)
    person.show_panel()
    person.run(0, "made")
    person.run(1, "wrecked")
    person.run(2, "seen [] False")
    person.row(3, head="true").wait_for()
    assert "x.clear()" in person.row(2).inner_text()

    # the preview tells what changes; the cells that ran since are marked
    person.row(1).locator(".jp-TimeTravel-restore").click()
    dialog = person.page.locator(".jp-Dialog")
    dialog.locator('tr[data-name="y"][data-sign="−"]').wait_for()
    dialog.locator('tr[data-name="x"][data-sign="~"]').wait_for()
    person.expect(dialog.locator('tr[data-sign="+"][data-name="note"]')).to_have_count(1)
    person.accept()
    person.row(1, head="true").wait_for()
    person.undone(2)
    person.expect(person.row(3)).to_have_attribute("data-present", "false")

    # undo from the notification: nothing is undone any more
    person.notified("restored #1").get_by_text("Undo").click()
    person.undone(0)

    # back to before the second cell, by the button on the cell, and a branch from there
    person.cell(1).locator(".cm-content").click()
    person.cell(1).locator('[data-command="timetravel:before-cell"]').click()
    person.accept()
    person.row(1, head="true").wait_for()
    person.undone(2)
    person.run(2, "seen [1, 2, 3] True")
    person.undone(1)

    # nothing of this is in the file
    person.save()
    playwright.expect(person.page.locator(".jp-Dialog")).to_have_count(0)
    written = server.folder / path
    assert sources(written) == [MAKE, WRECK, LOOK]
    assert "imetravel" not in written.read_text().replace("python3-timetravel", "")


def test_the_notebook_as_it_was(person: Notebook, server: Server) -> None:
    """Kernel and cells go back as one, what was made since is kept; one undo brings all back."""
    path = server.notebook("cells.ipynb", ["a = 1; print('first', a)", "b = 2; print('second', b)"])
    person.open("lab", path, 2)
    person.show_panel()
    person.run(0, "first 1")
    person.run(1, "second 2")
    person.row(2, head="true").wait_for()
    person.cell(0).locator(".cm-content").click()
    person.page.keyboard.press("Control+End")
    person.page.keyboard.type("  # why")
    person.run(0, "first 1")
    person.row(3, head="true").wait_for()
    person.page.keyboard.press("Escape")
    person.page.keyboard.press("d")
    person.page.keyboard.press("d")  # the first cell is gone
    person.page.keyboard.press("b")  # and a new one is there, never run
    person.page.keyboard.press("Enter")
    person.page.locator(".jp-Cell.jp-mod-active .cm-editor.cm-focused").wait_for()
    person.page.keyboard.type("# my notes")
    person.cell(0).locator(".cm-content").click()
    person.page.keyboard.press("Control+End")
    person.page.keyboard.type("  # half")

    person.restore(2, cells=True)
    cells = person.page.locator(".jp-Notebook .jp-CodeCell")
    person.expect(cells).to_have_count(3)
    person.expect(person.cell(0)).to_contain_text("print('first', a)")
    person.expect(person.cell(0)).not_to_contain_text("why")
    person.expect(person.cell(0)).to_contain_text("first 1")
    person.expect(person.cell(1)).to_contain_text("second 2")
    person.expect(person.cell(1)).not_to_contain_text("half")
    person.expect(person.cell(2)).to_contain_text("# my notes")
    person.expect(person.page.locator(".jp-TimeTravel-since")).to_have_count(1)
    person.undone(0)

    # one undo of the notebook brings back the cells of before
    person.execute("notebook:undo-cell-action")
    person.expect(cells).to_have_count(2)
    person.expect(person.cell(0)).to_contain_text("# half")
    person.expect(person.cell(0)).to_contain_text("second 2")
    person.expect(person.cell(1)).to_contain_text("# my notes")

    # and can be done again, and undone again
    person.execute("notebook:redo-cell-action")
    person.expect(cells).to_have_count(3)
    person.expect(person.cell(0)).to_contain_text("print('first', a)")
    person.expect(person.cell(0)).to_contain_text("first 1")
    person.expect(person.cell(1)).not_to_contain_text("half")
    person.expect(person.cell(1)).to_contain_text("second 2")
    person.expect(person.cell(2)).to_contain_text("# my notes")
    person.execute("notebook:undo-cell-action")
    person.expect(cells).to_have_count(2)
    person.expect(person.cell(0)).to_contain_text("second 2")

    # the undo of the notification takes back both
    person.restore(1, cells=True)
    person.expect(cells).to_have_count(3)
    person.notified("restored #1").get_by_text("Undo").click()
    person.expect(cells).to_have_count(2)
    person.expect(person.cell(0)).to_contain_text("# half")
    person.expect(person.cell(1)).to_contain_text("# my notes")
    person.undone(0)


def test_nothing_is_asked_while_cells_run(person: Notebook, server: Server) -> None:
    """What rows and notebooks need is asked for in the pause after the last of them."""
    cells = [f"import time; time.sleep(0.3); print('cell', {n})" for n in range(10)]
    path = server.notebook("busy.ipynb", cells)
    person.open("lab", path, len(cells))
    person.show_panel()
    person.page.evaluate(
        """() => {
          const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
          const send = kernel.sendControlMessage;
          window.asked = [];
          let own = 0; // while one is answered the kernel says that it is busy, too
          kernel.sendControlMessage = function (message, ...more) {
            window.asked.push([message.content.command, own === 0 ? kernel.status : 'own']);
            own++;
            const future = send.call(this, message, ...more);
            void future.done.finally(() => own--);
            return future;
          };
        }"""
    )
    person.execute("runmenu:run-all")
    person.expect(person.cell(9).locator(".jp-OutputArea-output")).to_contain_text("cell 9")
    person.row(10, head="true").wait_for()
    person.kept(10)  # the last of what is asked for
    asked = person.page.evaluate("() => window.asked")
    assert {name for name, _ in asked} >= {"keep_document"}
    assert [one for one in asked if one[1] == "busy"] == []


def test_by_hand(person: Notebook, server: Server) -> None:
    """A checkpoint with a comment, a label, a pin, a comparison, a deletion; and by keyboard."""
    path = server.notebook("hand.ipynb", ["v = 1; print('v', v)", "v = 2; print('v', v)"])
    person.open("lab", path, 2)
    person.show_panel()
    person.run(0, "v 1")
    person.row(1, head="true").wait_for()
    person.panel.locator('[data-command="timetravel:checkpoint"]').click()
    person.page.locator(".jp-Dialog input").fill("before the join")
    person.accept()
    person.row(2, head="true").wait_for()
    assert "before the join" in person.row(2).inner_text()
    person.run(1, "v 2")
    person.row(3, head="true").wait_for()

    person.choose(2, "Label…")
    person.page.locator(".jp-Dialog input").fill("join")
    person.accept()
    person.row(2).locator(".jp-mod-label", has_text="join").wait_for()
    person.choose(2, "Pin")
    person.row(2).locator(".jp-mod-pinned").wait_for()
    person.choose(1, "Compare with the Present")
    person.page.locator('.jp-Dialog tr[data-name="v"][data-sign="~"]').wait_for()
    person.accept()
    person.choose(1, "Delete…")
    person.accept()
    person.row(1).wait_for(state="detached")

    details = person.panel.locator(".jp-TimeTravel-details")
    person.row(2).click()
    details.locator('table[data-loaded] tr[data-name="v"]').wait_for()
    rows = person.panel.locator(".jp-TimeTravel-rows")
    rows.focus()
    person.page.keyboard.press("Home")
    person.panel.locator('.jp-TimeTravel-details[data-number="3"]').wait_for()
    person.page.keyboard.press("ArrowDown")
    person.panel.locator('.jp-TimeTravel-details[data-number="2"]').wait_for()
    person.page.keyboard.press("Enter")
    person.accept()
    person.row(2, head="true").wait_for()
    person.undone(1)


def test_what_outlives_the_kernel(person: Notebook, server: Server) -> None:
    """Effects are told, a variable is brought, cells are replayed, a new kernel goes on."""
    connect = "import socket\ntry: socket.create_connection(('127.0.0.1', 9))"
    connect += "\nexcept OSError: print('tried')"
    cells = ["a = [1]; print('a', a)", connect, "a.append(2); print('a', a)"]
    path = server.notebook("outlives.ipynb", cells)
    person.open("lab", path, 3)
    person.show_panel()
    person.run(0, "a [1]")
    person.row(1).locator(".jp-mod-durable").wait_for()
    person.run(1, "tried")
    person.row(2).locator(".jp-mod-effects").wait_for()
    person.run(2, "a [1, 2]")
    person.row(3, head="true").wait_for()

    person.row(1).click()
    person.panel.locator('tr[data-name="a"] input').check()
    person.panel.locator('[data-command="timetravel:bring"]').click()
    person.notified("as it was at #1").wait_for()
    person.row(5, head="true").wait_for()  # #4 is what was before

    person.row(1).locator(".jp-TimeTravel-restore").click()
    person.page.locator('.jp-Dialog [data-effects="1"]').wait_for()
    person.page.locator(".jp-Dialog .jp-mod-reject").click()
    person.choose(1, "Replay from Here…")
    person.accept()
    person.notified("replayed").wait_for()
    person.undone(0)

    newest = person.panel.locator('.jp-TimeTravel-row[data-head="true"]')
    newest.locator(".jp-mod-durable, .jp-mod-partial").wait_for()
    person.execute("kernelmenu:restart")
    person.accept()
    person.panel.locator('[data-command="timetravel:resume"]').click()
    person.notified("restored").wait_for()
    person.run(2, "a [1, 2, 2]")


def test_two_notebooks_and_a_reload(person: Notebook, server: Server) -> None:
    """The panel follows the one in front; what it shows of it survives a reload."""
    first = server.notebook("first.ipynb", ["va = 1; print('va', va)", "va = 2; print('va', va)"])
    second = server.notebook("second.ipynb", ["vb = 1; print('vb', vb)"])
    person.open("lab", first, 2)
    person.show_panel()
    person.run(0, "va 1")
    person.run(1, "va 2")
    person.row(2, head="true").wait_for()
    person.restore(1)
    person.undone(1)

    person.execute("docmanager:open", path=second)
    person.panel.locator('h2[data-document="second.ipynb"]').wait_for()
    person.in_state("ready")
    person.run(0, "vb 1")
    person.row(1, head="true").wait_for()
    assert "vb" in person.row(1).inner_text()
    person.expect(person.row(2)).to_have_count(0)

    person.execute("notebook:create-console", activate=True)
    person.page.wait_for_function(
        """() => [...jupyterapp.shell.widgets('right')].find(
          widget => widget.id === 'jp-timetravel-panel')._shown.document === null"""
    )  # its name is that of the notebook once it shares the session
    person.row(1, head="true").wait_for()
    assert "vb" in person.row(1).inner_text()

    person.execute("docmanager:open", path=first)
    person.panel.locator('h2[data-document="first.ipynb"]').wait_for()
    person.row(1, head="true").wait_for()
    assert "va" in person.row(1).inner_text()

    person.save()
    person.page.reload()
    person.wait(2)
    person.show_panel()
    person.row(1, head="true").wait_for()
    person.undone(1)
    person.run(1, "va 2")
    person.undone(0)


def test_the_kernel_goes_away(person: Notebook, server: Server) -> None:
    """A crash, a restart, a kernel without time travel, and back: the panel says which."""
    cells = ["k = 1; print('k', k)", "import os; os._exit(1)", "print('still', k)"]
    path = server.notebook("away.ipynb", cells)
    person.open("lab", path, 3)
    person.show_panel()
    person.run(0, "k 1")
    person.row(1, head="true").wait_for()
    person.run(1, "back at")
    warning = person.panel.locator(".jp-TimeTravel-warning")
    person.expect(warning).to_contain_text("died")
    person.run(2, "still 1")
    person.expect(warning).to_have_count(0)  # the session goes on

    person.execute("kernelmenu:restart")
    person.accept()
    person.panel.locator(".jp-mod-boundary").first.wait_for()
    person.in_state("ready")
    person.run(0, "k 1")

    change = "window.jupyterapp.shell.currentWidget.sessionContext.changeKernel({name: 'python3'})"
    person.page.evaluate(f"() => void {change}")
    person.in_state("unmanaged")
    person.panel.locator('[data-command="timetravel:switch-kernel"]').first.click()
    person.in_state("ready")
    person.row(1).wait_for()

    person.page.evaluate("() => void jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    person.in_state("absent")
    person.panel.locator('[data-command="timetravel:switch-kernel"]').click()
    person.in_state("ready")
    person.row(1).wait_for()
    changed_twice_at_once(person)


def changed_twice_at_once(person: Notebook) -> None:
    """The answer to the first change comes last, for a kernel that has ended for the second one."""
    page = person.page
    late: list[Any] = []

    def hold_the_first(route: Any) -> None:
        if route.request.method == "PATCH" and not late:
            late.append((route, route.fetch()))  # the server has done it
        else:
            route.continue_()

    page.route("**/api/sessions/*", hold_the_first)
    change = "sessionContext.changeKernel({name: 'python3-timetravel'})"
    with page.expect_request_finished(lambda request: request.method == "PATCH") as second:
        page.evaluate(f"() => void jupyterapp.shell.currentWidget.{change}")
        while not late:
            page.wait_for_timeout(50)
        page.evaluate(f"() => void jupyterapp.shell.currentWidget.{change}")
    wanted = second.value.response().json()["kernel"]["id"]
    kernel = "jupyterapp.shell.currentWidget.sessionContext.session?.kernel"
    page.wait_for_function(f"id => {kernel}?.id === id", arg=wanted)
    page.evaluate(
        """() => {
          window.had = [];
          jupyterapp.shell.currentWidget.sessionContext.kernelChanged.connect(
            (_, { newValue }) => window.had.push(newValue?.id));
        }"""
    )
    ((route, answer),) = late
    assert answer.json()["kernel"]["id"] != wanted
    route.fulfill(response=answer)
    page.wait_for_function(
        "ids => JSON.stringify(window.had) === JSON.stringify(ids)",
        arg=[answer.json()["kernel"]["id"], wanted],
    )
    person.in_state("ready")
    person.run(2, "NameError")  # the notebook, too, is with a kernel that answers
    page.unroute("**/api/sessions/*")
