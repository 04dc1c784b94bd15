"""The cases ``ui`` of the collection of hard ones, as a person meets them; each names its case.

What is not here is elsewhere: ui-08 (a part of another version, a kernel without a package) in
tests/install/test_doctor.py, its dark theme in test_accessibility.py; ui-11 (no variable is asked
for its text) in tests/kernel/test_looking.py.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from browsing import FRONT_ENDS, PATIENCE_MS, TOKEN, Notebook, Server, running_server
from walking import ASK, PANEL

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("jupyterlab", reason="needs JupyterLab")

SLOW = "import time; big = bytearray(300_000_000); va = 1; print('va', va)"


@pytest.fixture
def person(server: Server, page: Any) -> Notebook:
    return Notebook(page, server, playwright.expect)


@pytest.fixture
def other(server: Server, browser: Any) -> Iterator[Notebook]:
    """Somebody at another browser."""
    context = browser.new_context(viewport={"width": 1600, "height": 1200})
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    yield Notebook(page, server, playwright.expect)
    context.close()


def sources(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]


def test_ui_01_a_click_acts_on_the_notebook_that_is_shown(person: Notebook, server: Server) -> None:
    a = server.notebook("ui01/a.ipynb", [SLOW, "va = 2; print('va', va)"])
    b = server.notebook("ui01/b.ipynb", ["vb = 1; print('vb', vb)"])
    person.open("lab", a, 2)
    person.show_panel()
    person.run(0, "va 1")
    person.run(1, "va 2")
    person.row(2, head="true").wait_for()
    person.execute("docmanager:open", path=b)
    person.panel.locator('h2[data-document="b.ipynb"]').wait_for()
    person.in_state("ready")
    person.run(0, "vb 1")
    person.row(1, head="true").wait_for()

    # a click in the very moment of the change reaches a checkpoint of b, or nothing
    person.execute("docmanager:open", path=a)
    person.panel.locator('h2[data-document="a.ipynb"]').wait_for()
    person.row(2, head="true").wait_for()
    asked = person.page.evaluate(
        """path => new Promise(resolve => {
          const { commands } = jupyterapp;
          const restore = [...document.querySelectorAll('.jp-TimeTravel-restore')][0];
          const was = commands.execute;
          const asked = [];
          commands.execute = function (id, args) {
            if (id.startsWith('timetravel:restore')) {
              asked.push(commands.isEnabled(id, args));
            }
            return was.call(this, id, args);
          };
          void commands.execute('docmanager:open', { path }).then(() => {
            restore.click();
            commands.execute = was;
            resolve(asked);
          });
        })""",
        b,
    )
    person.panel.locator('h2[data-document="b.ipynb"]').wait_for()
    assert not any(asked)
    person.expect(person.page.locator(".jp-Dialog")).to_have_count(0)

    # in a terminal or a Markdown cell the last notebook stays; a restore of a is a's own
    person.execute("launcher:create")
    person.page.locator(".jp-Launcher").wait_for()
    assert person.panel.locator("h2").get_attribute("data-document") == "b.ipynb"
    person.execute("docmanager:open", path=a)
    person.panel.locator('h2[data-document="a.ipynb"]').wait_for()
    person.row(1).locator(".jp-TimeTravel-restore").click()
    person.accept()
    person.execute("docmanager:open", path=b)
    person.panel.locator('h2[data-document="b.ipynb"]').wait_for()
    person.notified("a.ipynb: restored #1").wait_for()
    person.row(1, head="true").wait_for()
    assert "vb" in person.row(1).inner_text()
    person.expect(person.row(2)).to_have_count(0)
    person.expect(person.page.locator(".jp-TimeTravel-running")).to_have_count(0)


def test_ui_02_after_a_restart_and_a_kill_the_panel_goes_on(
    person: Notebook, server: Server
) -> None:
    cells = ["a = 1; print('a', a)", "a = 2; print('a', a)", "print('now', a, 'b' in dir())"]
    path = server.notebook("ui02.ipynb", [*cells, "b = 5; print('b', b)"])
    person.open("lab", path, 4)
    person.show_panel()
    person.run(0, "a 1")
    person.run(1, "a 2")
    person.row(2, head="true").wait_for()
    person.row(2).locator(".jp-mod-durable").wait_for()
    person.execute("kernelmenu:restart")
    person.accept()
    person.panel.locator(".jp-mod-boundary").first.wait_for()
    person.run(3, "b 5")
    newest = person.panel.locator('.jp-TimeTravel-row[data-head="true"]')
    person.expect(newest).to_contain_text("b = 5")
    assert parent(person, "b = 5") == "restart"
    person.restore(2)
    person.run(2, "now 2 False")

    # killed outright; the server brings it back, and the old rows are there
    file = max(server.runtime.glob("kernel-*.json"), key=lambda one: one.stat().st_mtime)
    os.kill(supervisor_of(file), signal.SIGKILL)
    person.accept()  # JupyterLab says that it died
    boundaries = person.panel.locator(".jp-mod-boundary.jp-TimeTravel-badge")
    person.expect(boundaries).to_have_count(2)
    person.in_state("ready")
    person.run(3, "b 5")
    person.row(2).wait_for()
    person.panel.locator(".jp-TimeTravel-row", has_text="b = 5").first.wait_for()
    assert parent(person, "b = 5") == "restart"

    # without a kernel there is one button, which starts it
    person.page.evaluate("() => void jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    person.in_state("absent")
    person.panel.locator('[data-command="timetravel:switch-kernel"]').click()
    person.in_state("ready")
    person.restore(2)
    person.run(2, "now 2 False")


def parent(person: Notebook, code: str) -> str:
    """What the newest checkpoint of a cell hangs below: why that was made."""
    return str(
        person.page.evaluate(
            f"""code => {{
              const {{ records }} = {PANEL}._shown.timeline;
              const ran = [...records.values()].filter(one => one.code.startsWith(code));
              const last = ran.sort((a, b) => b.number - a.number)[0];
              return records.get(last.parent).reason;
            }}""",
            code,
        )
    )


def supervisor_of(connection_file: Path) -> int:
    """The process that has been started with a connection file."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if os.fsencode(connection_file) in words and b"kernel_runtime" in words:
            return int(path.parent.name)
    raise AssertionError(connection_file)


def test_ui_04_unsaved_cells_survive_a_restore(person: Notebook, server: Server) -> None:
    path = server.notebook("ui04.ipynb", ["", "", ""])
    person.open("lab", path, 3)
    person.execute("docmanager:toggle-autosave")
    person.show_panel()
    for index, text in enumerate(["a = 1; print('a', a)", "b = 2; print('b', b)", "# my notes"]):
        person.edit(index)
        person.page.keyboard.type(text)
    person.run(0, "a 1")
    person.run(1, "b 2")
    person.row(2, head="true").wait_for()
    person.edit(0)
    person.page.keyboard.press("Control+End")
    person.page.keyboard.type("  # why")
    texts = ["a = 1; print('a', a)  # why", "b = 2; print('b', b)", "# my notes"]

    person.restore(1)
    person.undone(1)
    assert person.page.locator(".jp-Notebook .cm-content").all_inner_texts() == texts
    assert person.page.evaluate(ASK, "['a' in dir(), 'b' in dir()]") == "[True, False]"
    assert sources(server.folder / path) == ["", "", ""]  # nothing was written behind its back
    person.restore(2, cells=True)
    person.expect(person.cell(0)).not_to_contain_text("why")
    person.notified("restored #2").get_by_text("Undo").click()
    person.expect(person.cell(0)).to_contain_text("# why")
    person.expect(person.page.locator(".jp-Dialog")).to_have_count(0)
    person.save()
    person.expect(person.page.locator(".jp-Dialog")).to_have_count(0)
    assert sources(server.folder / path) == texts


def test_ui_05_a_reload_in_the_middle_and_a_second_tab(
    person: Notebook, other: Notebook, server: Server
) -> None:
    cells = [SLOW, "x = 2; print('x', x)", "x = 3; print('x', x)", "print('x is', x)"]
    count = (
        "import time, os; print('begun', flush=True)\n"
        "while not os.path.exists('ui05-go'): time.sleep(0.1)\nprint('ended')"
    )
    path = server.notebook("ui05.ipynb", [*cells, count])
    person.open("lab", path, 5)
    person.show_panel()
    for index, text in enumerate(["va 1", "x 2", "x 3"]):
        person.run(index, text)
    person.row(3, head="true").wait_for()
    person.save()
    other.open("lab", path, 5)
    other.show_panel()
    other.row(3, head="true").wait_for()

    person.row(2).locator(".jp-TimeTravel-restore").click()
    person.accept()
    person.page.reload()
    other.row(2, head="true").wait_for()  # without a reload
    other.run(3, "x is 2")
    person.wait(5)
    person.show_panel()
    person.panel.locator('.jp-TimeTravel-row[data-head="true"]', has_text="x is").wait_for()
    # exactly one restore took place
    safeties = person.panel.locator(".jp-TimeTravel-row", has_text="before the restore")
    person.expect(safeties).to_have_count(1)

    # a reload while a cell runs: the panel knows, a restore waits for nobody's cell to be lost
    other.edit(4)
    other.page.keyboard.press("Control+Enter")
    other.expect(other.cell(4).locator(".jp-OutputArea-output")).to_contain_text("begun")
    person.page.reload()
    person.wait(5, "busy")
    person.show_panel()
    runs = person.panel.locator(".jp-TimeTravel-row", has_text="import time")
    (server.folder / "ui05-go").touch()
    person.expect(other.cell(4).locator(".jp-OutputArea-output")).to_contain_text("ended")
    person.panel.locator('.jp-TimeTravel-row[data-head="true"]', has_text="auto").wait_for()
    person.wait(5)
    # the cell that allocated, and the one that counted, once
    person.expect(runs).to_have_count(2)

    # both at once: the first wins, the other is told, unless the first has ended by then
    for one, number in ((person, 1), (other, 3)):
        one.row(number).locator(".jp-TimeTravel-restore").click()
        one.page.locator(".jp-Dialog button.jp-mod-accept").last.wait_for()
    for one in (person, other):
        one.page.evaluate(
            "() => [...document.querySelectorAll('.jp-Dialog button.jp-mod-accept')].pop().click()"
        )

    def told(one: Notebook) -> int:
        return int(one.page.locator(".Toastify__toast", has_text="is going back already").count())

    def safeties(one: Notebook) -> int:
        return int(one.panel.locator(".jp-TimeTravel-row", has_text="before the rest").count())

    while (refused := [told(one) for one in (person, other)]) and not (
        sum(refused) + safeties(person) == 3 == sum(refused) + safeties(other)
    ):
        person.page.wait_for_timeout(100)
    assert sum(refused) <= 1
    for one in (person, other):
        one.page.locator('#jp-timetravel-panel[data-running="false"]').wait_for()
    heads = '.jp-TimeTravel-row[data-head="true"]'
    end = person.page.evaluate(f"() => document.querySelector('{heads}').dataset.number")
    assert end in [number for number, is_told in zip("13", refused, strict=True) if not is_told]
    other.row(int(end), head="true").wait_for()
    person.row(int(end), head="true").wait_for()


def test_ui_07_two_people_in_one_document(
    browser: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Real-time collaboration: a restore is an edit of the shared document, no cell is lost."""
    prefix = os.environ.get("TT_COLLABORATION")
    if not prefix:
        pytest.skip("needs TT_COLLABORATION: where pip install --prefix put jupyter-collaboration")
    with running_server(tmp_path_factory.mktemp("shared"), Path(prefix)) as server:
        path = server.notebook("shared.ipynb", [f"v = {n}; print('v', v)" for n in (1, 2, 3, 4)])
        contexts = [browser.new_context(viewport={"width": 1600, "height": 1200}) for _ in "12"]
        try:
            people = []
            for context in contexts:
                page = context.new_page()
                page.set_default_timeout(PATIENCE_MS)
                people.append(Notebook(page, server, playwright.expect))
            first, second = people
            for one in people:
                one.open("lab", path, 4)
                one.show_panel()
                assert one.page.evaluate(
                    "() => jupyterapp.shell.currentWidget.content.model.collaborative"
                )
            for index in range(4):
                first.run(index, f"v {index + 1}")
            first.row(4, head="true").wait_for()
            second.row(4, head="true").wait_for()
            second.edit(3)
            second.page.keyboard.press("Escape")
            second.page.keyboard.press("b")
            second.page.keyboard.press("Enter")
            second.page.locator(".jp-Cell.jp-mod-active .cm-editor.cm-focused").wait_for()
            second.page.keyboard.type("# U2 draft")
            first.expect(first.cell(4)).to_contain_text("# U2 draft")

            def cells(one: Notebook) -> Any:
                return one.page.evaluate(
                    """() => [...jupyterapp.shell.currentWidget.content.model.cells].map(
                      cell => [cell.id, cell.sharedModel.getSource()])"""
                )

            # the kernel alone: not a letter of the document changes, and the other one is told
            before = cells(first)
            first.restore(3)
            second.notified("restored #3").wait_for()
            assert cells(first) == cells(second) == before

            contexts[1].set_offline(True)
            # Chromium leaves sockets open that were so before: the laptop's are dead
            second.page.evaluate(
                "() => jupyterapp.shell.currentWidget.sessionContext.session.kernel._ws.close()"
            )
            second.page.keyboard.type(" goes on")
            first.restore(2, cells=True)
            contexts[1].set_offline(False)
            second.row(2, head="true").wait_for()
            second.notified("went back while this page was not connected").wait_for()

            for one in people:
                one.expect(one.cell(4)).to_contain_text("# U2 draft goes on")
                found = cells(one)
                assert len({id for id, _ in found}) == len(found) == 5
            assert cells(first) == cells(second)
            assert first.page.evaluate(ASK, "v") == "2"
            while sources(server.folder / path) != [source for _, source in cells(first)]:
                first.page.wait_for_timeout(200)  # the server writes the file by and by
            first.run(4)
        finally:
            for context in contexts:
                context.close()


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_ui_08_another_version_and_a_base_url(
    person: Notebook, server: Server, front_end: str
) -> None:
    """A kernel that speaks another version is told apart from one without time travel."""
    path = server.notebook(f"ui08/{front_end}.ipynb", ["x = 1; print('x', x)"])
    person.page.add_init_script(
        """const Socket = window.WebSocket;
        window.WebSocket = class extends Socket {
          set onmessage(heard) {
            super.onmessage = event => {
              if (event.data instanceof ArrayBuffer) {
                const bytes = new Uint8Array(event.data);
                const text = new TextDecoder('latin1').decode(bytes);
                const at = text.indexOf('"timetravel": {"version": 1}');
                if (at >= 0) {
                  bytes[at + '"timetravel": {"version": '.length] = '2'.charCodeAt(0);
                }
              }
              heard(event);
            };
          }
        };"""
    )
    person.page.goto(f"{server.url}{FRONT_ENDS[front_end]}/{path}?token={TOKEN}&reset")
    person.cell(0).wait_for()
    person.show_panel("failed")
    person.expect(person.panel.get_by_role("alert")).to_contain_text("kernel version 2")
    person.run(0, "x 1")  # the notebook works


def test_ui_08_the_server_part_is_turned_off(
    browser: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The sidebar speaks to the kernel, so it works without; the panel says so once, with what
    mends it, and nothing more is asked of the server."""
    root = tmp_path_factory.mktemp("half")
    options = ["--ServerApp.jpserver_extensions={'jupyter_timetravel': False}"]
    options += ["--ServerApp.base_url=/user/x/"]
    with running_server(root, options=options) as server:
        assert server.url.endswith("/user/x/")
        context = browser.new_context(viewport={"width": 1600, "height": 1200})
        try:
            page = context.new_page()
            page.set_default_timeout(PATIENCE_MS)
            paths: list[str] = []
            page.on("request", lambda request: paths.append(urlsplit(request.url).path))
            person = Notebook(page, server, playwright.expect)
            cells = ["x = 1; print('x', x)", "x = 2; print('x', x)"]
            person.open("lab", server.notebook("half.ipynb", cells), 2)
            person.show_panel()
            person.run(0, "x 1")
            person.run(1, "x 2")
            person.row(2, head="true").wait_for()
            person.restore(1)
            person.undone(1)
            assert page.request.get(f"{server.url}api/timetravel?token={TOKEN}").status == 404
            problem = person.panel.locator(".jp-TimeTravel-problem")
            person.expect(problem).to_have_count(1)
            person.expect(problem).to_contain_text("HTTP 404 at /user/x/api/timetravel")
            person.expect(problem.locator("code")).to_contain_text(
                "jupyter server extension enable"
            )
            person.row(1).click(button="right")
            page.get_by_role("menuitem", name="Export Its Cells…").wait_for()
            person.expect(
                page.get_by_role("menuitem", name="Export the Checkpoint…")
            ).to_have_count(0)
            page.keyboard.press("Escape")
            page.screenshot(path=str(root / "without.png"))
            problem.get_by_role("button").click()
            person.expect(problem).to_have_count(0)
            person.execute("kernelmenu:restart")
            person.accept()
            person.panel.locator(".jp-mod-boundary").first.wait_for()
            person.run(1, "x 2")
            person.expect(problem).to_have_count(0)
            asked = [path for path in paths if "timetravel" in path and "/api/" in path]
            assert asked == ["/user/x/api/timetravel"]
            assert all(path.startswith("/user/x/") for path in paths)
        finally:
            context.close()


def test_ui_10_a_cell_that_was_deleted_while_it_ran(person: Notebook, server: Server) -> None:
    slow = "import time; print('begun'); time.sleep(4); x = 2; print('x', x)"
    cells = ["x = 1; print('x', x)", slow, "x = x + 10; print('x', x)"]
    path = server.notebook("ui10.ipynb", cells)
    person.open("lab", path, 3)
    person.show_panel()
    person.run(0, "x 1")
    person.run(1, "begun")
    person.page.keyboard.press("Escape")
    person.page.keyboard.press("d")
    person.page.keyboard.press("d")
    person.expect(person.page.locator(".jp-Notebook .jp-CodeCell")).to_have_count(2)
    person.row(2, head="true").wait_for()
    person.run(1, "x 12")
    person.row(3, head="true").wait_for()
    person.row(2).click()
    details = person.panel.locator(".jp-TimeTravel-details")
    person.expect(details).to_contain_text("Its cell is not in the notebook")
    details.locator('[data-command="timetravel:insert-again"]').click()
    person.expect(person.cell(2)).to_contain_text("time.sleep(4)")
    person.expect(details).not_to_contain_text("Its cell is not in the notebook")

    person.restore(1)
    person.undone(1)  # the one that was inserted shows nothing of a run
    person.run(1, "x 11")
    person.expect(person.cell(1).locator(".jp-InputPrompt").first).to_have_text("[2]:")
    person.undone(0)
    person.row(5, head="true").wait_for()  # else it moves the row that is clicked
    person.restore(2)
    person.expect(person.row(2, head="true")).to_contain_text("time.sleep(4)")
    assert person.page.evaluate(ASK, "[x, len(In), 3 in Out]") == "[2, 3, False]"
