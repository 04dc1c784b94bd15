"""Buttons, menu entries, shortcuts and settings of the sidebar are used, and do their work."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Server, running_server
from walking import Walker, all_commands

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("jupyterlab", reason="needs JupyterLab")

MAKE = "x = [1]; open('note', 'w').write('old\\n'); print('x', x)"
APPEND = "x.append(2); open('note', 'w').write('new\\n'); print('x', x)"
PAY = """\
from jupyter_timetravel import compensate
def pay_back():
    with open(LOG, 'a') as log: log.write('paid back')
compensate(pay_back); print('paid')"""
CELLS = [MAKE, PAY, "%restore 2", APPEND]
FIRST, PAYING, _, LAST = range(len(CELLS))
OLD, NEW = ("[1]", "'old\\n'"), ("[1, 2]", "'new\\n'")

ELSEWHERE = {
    "timetravel:checkpoint-group": "test_groups.py",
    "timetravel:restore-group": "test_groups.py",
    "timetravel:export-checkpoint": "test_rows.py",
    "timetravel:refresh": "test_palette.py",
    "timetravel:resume": "test_sidebar.py",
    "timetravel:switch-kernel": "test_sidebar.py",
}
"""Commands that are tried elsewhere: what they need is made there."""


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One of its own: settings are changed."""
    with running_server(tmp_path_factory.mktemp("every")) as running:
        yield running


@pytest.fixture
def person(server: Server, page: Any) -> Walker:
    return Walker(page, server, playwright.expect)


def state(person: Walker) -> tuple[str, str]:
    """The variable and the file."""
    return person.value("x"), person.value("open('note').read()")


@pytest.fixture
def log() -> Iterator[Path]:
    """A file that does not go back: /tmp is the machine's own inside of a session."""
    with tempfile.TemporaryDirectory(prefix="tt-paid-", dir="/tmp") as folder:
        yield Path(folder) / "log"


def test_everything_there_is_to_click(person: Walker, server: Server, log: Path) -> None:
    cells = [source.replace("LOG", repr(str(log))) for source in CELLS]
    path = server.notebook("every/every.ipynb", cells)
    person.page.set_viewport_size({"width": 1600, "height": 5000})  # for all rows to be in view
    person.open("lab", path, len(cells))
    person.note_commands()
    steps(person, server, log)
    # a new command without a step here is found
    assert all_commands(person) - person.executed() == ELSEWHERE.keys()


def steps(person: Walker, server: Server, log: Path) -> None:
    person.edit(0)
    person.page.keyboard.press("Escape")
    person.page.keyboard.press("Alt+Shift+T")
    person.in_state("ready")
    person.run(FIRST, "x [1]")
    person.run(LAST, "x [1, 2]")
    person.row(2, head="true").wait_for()
    by_hand(person)
    filtering(person)
    going_back(person)
    parts(person)
    cells_as_they_were(person)
    comparing(person)
    bringing(person)
    marking(person)
    replaying(person)
    writing(person, server)
    before_a_cell(person)
    paying_back(person, log)
    settings(person)


def by_hand(person: Walker) -> None:
    """#3 by the button, #4 by the keys, #5 by the menu."""
    button = person.panel.locator('[data-command="timetravel:checkpoint"]')
    button.click()
    person.refuse()
    button.click()
    person.dialog.locator("input").fill("by the button")
    person.accept()
    person.expect(person.row(3, head="true")).to_contain_text("by the button")
    person.cell(0).locator(".jp-InputPrompt").click()
    person.page.keyboard.press("Alt+Shift+C")
    person.dialog.locator("input").fill("by the keys")
    person.accept()
    person.expect(person.row(4, head="true")).to_contain_text("by the keys")
    person.from_menu("Checkpoint Now…", "Kernel")
    person.dialog.locator("input").fill("by the menu")
    person.accept()
    person.expect(person.row(5, head="true")).to_contain_text("by the menu")
    person.from_menu("Show the Timeline")


def filtering(person: Walker) -> None:
    field = person.panel.get_by_role("searchbox")
    rows = person.panel.locator(".jp-TimeTravel-row")
    field.fill("APPEND")
    person.expect(rows).to_have_count(1)
    person.row(2).wait_for()
    field.fill("by the")
    person.expect(rows).to_have_count(3)
    field.fill("nowhere")
    person.expect(rows).to_have_count(0)
    person.expect(person.panel).to_contain_text("Nothing like that.")
    field.fill("")
    person.expect(rows).to_have_count(6)


def going_back(person: Walker) -> None:
    """By the row, its menu and its details; taken back by the header, the keys and the menus."""
    undo = person.panel.locator('[data-command="timetravel:undo"]')
    person.expect(undo).to_be_disabled()
    restore = person.row(1).locator(".jp-TimeTravel-restore")
    restore.click()
    person.refuse()
    assert state(person) == NEW
    restore.click()
    with person.going_back():
        person.accept()
    assert state(person) == OLD
    with person.going_back():
        undo.click()
    assert state(person) == NEW
    person.choose(1, "Go Back to It")
    with person.going_back():
        person.accept()
    assert state(person) == OLD
    person.page.locator(".jp-Notebook .jp-InputPrompt").first.click()
    with person.going_back():
        person.page.keyboard.press("Alt+Shift+Z")
    assert state(person) == NEW
    person.press(1, "restore")
    with person.going_back():
        person.accept()
    assert state(person) == OLD
    with person.going_back():
        person.from_menu("Undo the Last Restore", "Kernel")
    assert state(person) == NEW


def parts(person: Walker) -> None:
    """Only the memory, only the files."""
    person.choose(1, "Only the Memory")
    person.expect(person.dialog).to_contain_text("Bring back the memory of #1?")
    with person.going_back():
        person.accept()
    assert state(person) == (OLD[0], NEW[1])
    with person.going_back():
        person.from_menu("Undo the Last Restore")
    assert state(person) == NEW
    person.press(1, "restore-files")
    person.expect(person.dialog).to_contain_text("Bring back the files of #1?")
    with person.going_back():
        person.accept()
    assert state(person) == (NEW[0], OLD[1])
    person.press(1, "restore-memory")
    with person.going_back():
        person.accept()
    assert state(person) == OLD
    person.choose(2, "Only the Files")
    with person.going_back():
        person.accept()
    assert state(person) == (OLD[0], NEW[1])
    person.press(2, "restore-memory")
    with person.going_back():
        person.accept()
    assert state(person) == NEW


def cells_as_they_were(person: Walker) -> None:
    """The kernel stays where it is."""
    outputs = person.cell(LAST).locator(".jp-OutputArea-output")
    person.choose(1, "The Notebook as It Was")
    person.expect(outputs).to_have_count(0)
    person.notified("The cells are as they were at #1").get_by_text("Undo").click()
    person.expect(outputs).to_have_count(1)
    person.press(1, "notebook-as-it-was")
    person.expect(outputs).to_have_count(0)
    person.press(2, "notebook-as-it-was")
    person.expect(outputs).to_have_count(1)
    assert state(person) == NEW
    person.undone(0)


def comparing(person: Walker) -> None:
    def shown(title: str) -> Any:
        person.expect(person.dialog.locator(".jp-Dialog-header")).to_have_text(title)
        return person.dialog

    person.choose(2, "What It Changed")
    found = shown("From #1 to #2")
    person.expect(found.locator('tr[data-name="x"][data-sign="~"] td').nth(1)).to_contain_text("1")
    line = found.locator('tr[data-name="note"]')
    line.locator("button").click()
    patch = found.locator('tr[data-inside="note"] .jp-TimeTravel-patch')
    person.expect(patch).to_contain_text("-old\n+new\n")
    line.locator("button").click()
    person.expect(patch).to_have_count(0)
    person.refuse()
    person.press(2, "what-it-changed")
    shown("From #1 to #2")
    person.refuse()

    person.choose(3, "Compare with Another…")
    person.dialog.locator("select").select_option(label="#1 " + MAKE)
    person.dialog.locator("button.jp-mod-accept").click()
    found = shown("From #1 to #3")
    found.locator('tr[data-name="x"][data-sign="~"]').wait_for()
    person.refuse()
    person.choose(2, "Compare with Another…")
    person.refuse()
    person.choose(1, "Compare with the Present")
    shown("From #1 to the present").locator('tr[data-name="x"][data-sign="~"]').wait_for()
    person.refuse()


def bringing(person: Walker) -> None:
    person.press(1, "compare-present")
    person.dialog.locator('tr[data-name="note"] input').check()
    person.dialog.get_by_role("button", name="Bring the Chosen").click()
    told = person.notified("note as it was at #1")
    told.wait_for()
    assert state(person) == (NEW[0], OLD[1])
    with person.going_back():
        told.get_by_text("Undo").click()
    assert state(person) == NEW
    details = person.details(1)
    details.locator('tr[data-name="x"] input').check()
    details.locator('[data-command="timetravel:bring"]').click()
    told = person.notified("x as it was at #1")
    told.wait_for()
    assert state(person) == (OLD[0], NEW[1])
    with person.going_back():
        told.get_by_text("Undo").click()
    assert state(person) == NEW
    person.close_details()


def marking(person: Walker) -> None:
    """Label, pin, verify, delete."""
    person.choose(4, "Label…")
    person.dialog.locator("input").fill("never")
    person.refuse()
    person.choose(4, "Label…")
    person.dialog.locator("input").fill("a good one")
    person.accept()
    person.expect(person.row(4).locator(".jp-mod-label")).to_have_text("a good one")
    person.choose(4, "Label…")
    person.dialog.locator("input").fill("")
    person.accept()
    person.expect(person.row(4).locator(".jp-mod-label")).to_have_count(0)

    pinned = person.row(4).locator(".jp-mod-pinned")
    person.choose(4, "Pin")
    person.expect(pinned).to_have_text("pinned")
    person.row(4).click(button="right")
    entry = person.page.get_by_role("menuitem", name="Delete…")
    person.expect(entry).to_have_attribute("aria-disabled", "true")
    person.page.keyboard.press("Escape")
    person.choose(4, "Unpin")
    person.expect(pinned).to_have_count(0)

    person.row(1).locator(".jp-mod-durable").wait_for()
    person.choose(1, "Verify")
    verified = person.row(1).locator(".jp-mod-verified")
    person.expect(verified).to_have_text("verified")
    assert verified.get_attribute("title").startswith("Loaded for real and compared: ")

    person.choose(4, "Delete…")
    person.refuse()
    person.row(4).wait_for()
    person.choose(4, "Delete…")
    person.accept()
    person.expect(person.row(4)).to_have_count(0)


def replaying(person: Walker) -> None:
    """The second cell runs again, after the first."""
    person.choose(1, "Replay from Here…")
    person.expect(person.dialog.locator("li")).to_have_count(1)
    person.expect(person.dialog.locator("li")).to_contain_text("x.append(2)")
    person.refuse()
    person.choose(1, "Replay from Here…")
    person.accept()
    person.notified("replayed").wait_for()
    person.expect(person.panel).to_have_attribute("data-running", "false")
    assert state(person) == NEW
    person.undone(0)


def writing(person: Walker, server: Server) -> None:
    """Export, and a deleted cell that is inserted again."""
    folder = server.folder / "every"
    person.choose(2, "Export Its Cells…")
    person.refuse()
    for name, ask in (("a", person.choose), ("b", None)):
        if ask is not None:
            ask(1, "Export Its Cells…")
        else:
            person.press(1, "export")
        person.dialog.locator("input").fill(f"every/{name}.ipynb")
        person.accept()
        person.notified(f"Written: every/{name}.ipynb").wait_for()
        written = json.loads((folder / f"{name}.ipynb").read_text())
        assert ["".join(cell["source"]) for cell in written["cells"]] == [MAKE]

    cells = person.page.locator(".jp-Notebook .jp-CodeCell")
    for by_menu in (True, False):
        activate(person, LAST)
        person.page.keyboard.press("d")
        person.page.keyboard.press("d")
        person.expect(cells).to_have_count(len(CELLS) - 1)
        if by_menu:
            person.choose(2, "Insert Its Cell")
        else:
            person.press(2, "insert-again")
        person.expect(cells).to_have_count(len(CELLS))
        person.expect(person.cell(LAST)).to_contain_text("x.append(2)")
        person.expect(person.cell(LAST)).to_contain_text("x [1, 2]")


def activate(person: Walker, index: int) -> None:
    """Make a cell the active one, in command mode."""
    person.cell(index).locator(".jp-InputPrompt").first.click()
    person.page.locator(".jp-Notebook.jp-mod-commandMode").wait_for()


def before_a_cell(person: Walker) -> None:
    """By the button in its margin, the keys, the clock's menu and the Kernel menu."""
    name = "Go Back to before This Cell"
    person.close_details()
    for way in (
        lambda: person.cell(LAST).locator(".jp-TimeTravel-before").click(),
        lambda: person.page.keyboard.press("Alt+Shift+B"),
        lambda: person.from_menu(name),
        lambda: person.from_menu(name, "Kernel"),
    ):
        activate(person, LAST)
        way()
        with person.going_back():
            person.accept()
        assert state(person) == OLD
        person.undone(1)
        with person.going_back():
            person.panel.locator('[data-command="timetravel:undo"]').click()
        assert state(person) == NEW
        person.undone(0)


def paying_back(person: Walker, log: Path) -> None:
    """What a cell has registered is run only where that is chosen."""
    restore = person.row(2).locator(".jp-TimeTravel-restore")
    for is_chosen in (False, True):
        person.run(PAYING, "paid")
        person.panel.locator('[data-head="true"]', has_text="compensate").wait_for()
        restore.click()
        box = person.dialog.locator('input[name="compensate"]')
        person.expect(box).not_to_be_checked()
        person.expect(person.dialog).to_contain_text("pay_back()")
        box.set_checked(is_chosen)
        with person.going_back():
            person.accept()
        assert log.exists() == is_chosen
        assert person.value("'pay_back' in dir()") == "False"
    assert log.read_text() == "paid back"


def settings(person: Walker) -> None:
    restore = {number: person.row(number).locator(".jp-TimeTravel-restore") for number in (1, 2)}
    outputs = person.cell(LAST).locator(".jp-OutputArea-output")

    # the preview, and its choices
    person.dismiss()
    restore[1].click()
    person.dialog.locator('input[name="notebook"]').check()
    person.dialog.locator('input[name="preview"]').check()
    with person.going_back():
        person.accept()
    assert state(person) == OLD
    person.expect(outputs).to_have_count(0)
    with person.going_back():
        person.notified("restored #1").get_by_text("Undo").click()
    person.expect(outputs).to_have_count(1)
    assert state(person) == NEW
    with person.going_back():
        restore[1].click()
    assert state(person) == OLD
    person.expect(outputs).to_have_count(1)
    person.expect(person.dialog).to_have_count(0)
    person.undone(2)

    # marks
    person.toggle("marks", on=False)
    person.undone(0)
    person.toggle("marks", on=True)
    person.undone(2)

    # the cells go back, too
    person.toggle("restoreNotebook", on=True)
    with person.going_back():
        restore[2].click()
    person.undone(0)
    with person.going_back():
        restore[1].click()
    person.expect(outputs).to_have_count(0)
    person.toggle("preview", on=True)
    restore[2].click()
    person.expect(person.dialog.locator('input[name="notebook"]')).to_be_checked()
    with person.going_back():
        person.accept()
    person.expect(outputs).to_have_count(1)
    person.toggle("restoreNotebook", on=False)
    assert state(person) == NEW

    # what is listed
    person.row(1).wait_for()
    person.toggle("showAutomatic", on=False)
    person.expect(person.row(1)).to_have_count(0)
    person.row(3).wait_for()
    person.toggle("showAutomatic", on=True)
    person.row(1).wait_for()
