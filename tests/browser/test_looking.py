"""Looking into checkpoints from the sidebar, bringing parts of them, and what a reload keeps."""

from __future__ import annotations

import json
from typing import Any

import pytest
from browsing import PATIENCE_MS, Notebook, Server

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("jupyterlab", reason="needs JupyterLab")
pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

MAKE = """\
import pandas as pd
import matplotlib.pyplot as plt
df = pd.DataFrame({"a": range(1000), "b": "old"})
fig, ax = plt.subplots(); ax.plot([1, 2, 3])
fig.savefig("plot.png")
open("notes.txt", "w").write("".join(f"line {n}\\n" for n in range(50)))
print("made")"""
CHANGE = """\
df.loc[3, "b"] = "new"; fig.axes[0].set_title("later"); fig.savefig("plot.png")
open("notes.txt", "w").write("".join(f"line {n if n != 25 else 'X'}\\n" for n in range(50)))
extra = 1
print("changed"); fig"""
LOOK = "print('seen', df.b[3], 'extra' in dir(), open('notes.txt').read().split()[51])"


@pytest.fixture
def person(server: Server, page: Any) -> Notebook:
    return Notebook(page, server, playwright.expect)


def test_looking_into_a_difference(person: Notebook, server: Server, tmp_path: Any) -> None:
    """What a row changed; a text, images, frames and cells before and after; parts are brought."""
    path = server.notebook("look/look.ipynb", [MAKE, CHANGE, LOOK])
    person.open("lab", path, 3)
    person.show_panel()
    for index in range(2):
        person.run(index)
        person.cell(index).locator(".jp-OutputArea-output img").wait_for()
        person.row(index + 1, head="true").wait_for()

    changed = person.row(2).locator(".jp-TimeTravel-changed")
    person.expect(changed).to_have_text("3 variables2 files")
    names = changed.locator("span").first.get_attribute("title")
    assert set(names.splitlines()) == {"~ df", "~ ax", "+ extra"}
    person.expect(person.row(1).locator(".jp-TimeTravel-changed")).to_contain_text("2 files")

    person.choose(1, "Compare with the Present")
    dialog = person.page.locator(".jp-Dialog")

    def look_at(kind: str, line: str) -> Any:
        section = dialog.locator(f'section[data-kind="{kind}"]')
        section.locator(f'tr[data-name="{line}"] button').click()
        return section.locator(f'tr[data-inside="{line}"]')

    patch = look_at("files", "notes.txt").locator(".jp-TimeTravel-patch")
    person.expect(patch.locator('[data-sign="-"]')).to_have_text("-line 25\n")
    person.expect(patch.locator('[data-sign="+"]')).to_have_text("+line X\n")
    assert patch.locator("span").count() == 9  # the head, three lines around, two that differ
    for kind, line in (("files", "plot.png"), ("variables", "ax")):
        images = look_at(kind, line).locator("img")
        person.expect(images).to_have_count(2)
        assert len({images.nth(at).get_attribute("src") for at in (0, 1)}) == 2
    frame = look_at("variables", "df")
    frame.locator('[data-side="after"] td', has_text="new").wait_for()
    person.expect(frame.locator('[data-side="before"] td', has_text="old")).to_have_count(20)
    person.expect(frame.locator('[data-side="before"] td', has_text="new")).to_have_count(0)
    cells = dialog.locator('section[data-kind="cells"]')
    person.expect(cells.locator("tr[data-name]")).to_have_count(1)  # only the second one ran since
    cells.locator("tr[data-name] button").click()
    person.expect(cells.locator('[data-side="after"] img')).to_have_count(1)
    assert not person.serious_in_a_theme(".jp-Dialog-content", tmp_path, "look")

    # chosen parts of it come back, the rest stays
    dialog.locator('tr[data-name="notes.txt"] input').check()
    dialog.locator('tr[data-name="df"] input').check()
    dialog.get_by_role("button", name="Bring the Chosen").click()
    person.notified("df as it was at #1").wait_for()
    person.notified("notes.txt as it was at #1").wait_for()
    person.run(2, "seen old True 25")


def test_a_reload_keeps_the_notebook_as_it_was(
    person: Notebook, server: Server, browser: Any
) -> None:
    """After a reload, in another browser, and by another kernel; and the cells as a notebook."""
    cells = ["a = 1; print('first', a)", "b = 2; print('second', b)"]
    path = server.notebook("kept.ipynb", cells)
    person.open("lab", path, 2)
    person.show_panel()
    person.run(0, "first 1")
    person.run(1, "second 2")
    person.row(2, head="true").wait_for()
    person.edit(1)
    person.page.keyboard.press("Control+A")
    person.page.keyboard.type("b = 3; print('third', b)")
    person.run(1, "third 3")
    person.row(3, head="true").wait_for()
    for number in (1, 2, 3):
        person.kept(number)
    person.save()
    person.page.reload()
    person.wait(2)
    person.show_panel()
    person.choose(2, "The Notebook as It Was")
    person.expect(person.cell(1)).to_contain_text("second 2")
    person.expect(person.cell(1)).not_to_contain_text("third")
    person.execute("notebook:undo-cell-action")
    person.expect(person.cell(1)).to_contain_text("third 3")
    person.save()

    person.choose(2, "Export Its Cells…")
    person.page.locator(".jp-Dialog input").fill("clean.ipynb")
    person.accept()
    person.notified("Written: clean.ipynb").wait_for()
    written = json.loads((server.folder / "clean.ipynb").read_text())
    assert ["".join(cell["source"]) for cell in written["cells"]] == cells

    newest = person.row(3, head="true")
    newest.locator(".jp-mod-durable").wait_for()
    person.execute("kernelmenu:restart")
    person.accept()
    offer = person.notified("its last session can go on from #3")
    offer.get_by_text("Resume").click()
    person.notified("restored").wait_for()

    other = browser.new_context(viewport={"width": 1600, "height": 1200})
    try:
        page = other.new_page()
        page.set_default_timeout(PATIENCE_MS)
        second = Notebook(page, server, playwright.expect)
        second.open("lab", path, 2)
        second.show_panel()
        second.restore(1, cells=True)
        second.expect(second.cell(1)).to_contain_text("b = 2")
        second.expect(second.cell(1).locator(".jp-OutputArea-output")).to_have_count(0)
        second.run(0, "first 1")
    finally:
        other.close()
