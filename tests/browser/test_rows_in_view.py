"""What a row tells, where it is, and that only rows in view are in the page."""

from __future__ import annotations

import shutil
from itertools import pairwise
from typing import Any

import pytest
from browsing import FRONT_ENDS, PATIENCE_MS, Server
from jupyter_client import BlockingKernelClient
from walking import Walker

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("jupyterlab", reason="needs JupyterLab")

DOOR = "import socket; door = socket.socket(socket.AF_UNIX); door.bind('door'); print('bound')"


@pytest.fixture
def person(server: Server, page: Any) -> Walker:
    return Walker(page, server, playwright.expect)


def test_badges(person: Walker, server: Server) -> None:
    """Instant, on disk, exact, verified; what is not held, with the reasons to point at."""
    cells = ["x = 1; print('x', x)", "lost = (n for n in range(3)); print('made')", DOOR]
    person.open("lab", server.notebook("badges/b.ipynb", [*cells, "print('still', x)"]), 4)
    person.show_panel()

    def badge(number: int, name: str, text: str, hint: str = "") -> None:
        found = person.row(number).locator(f".jp-TimeTravel-badge.jp-mod-{name}")
        person.expect(found).to_have_text(text)
        assert hint in (found.get_attribute("title") or "")
        held = person.details(number).locator(f".jp-TimeTravel-badge.jp-mod-{name}")
        if name != "missing":  # the details tell it in full
            person.expect(held).to_have_text(text)

    person.run(0, "x 1")
    badge(1, "instant", "instant", "all of the memory comes back at once")
    badge(1, "durable", "on disk", "The variables outlive the kernel: ")
    person.expect(person.row(1).locator(".jp-mod-verified")).to_have_count(0)
    person.choose(1, "Verify")
    badge(1, "verified", "verified", "Loaded for real and compared: ")
    person.expect(person.row(1).locator(".jp-mod-missing")).to_have_count(0)
    if shutil.which("dmtcp_launch"):  # what makes images for an ordinary user
        badge(1, "exact", "exact", "An image of the whole process is on the disk.")

    person.run(1, "made")
    badge(2, "partial", "on disk, but 1", "lost: ")
    person.expect(person.details(2)).to_contain_text("variable lost: ")
    person.run(2, "bound")
    badge(3, "missing", "1 not held", "file door: ")
    person.expect(person.details(3)).to_contain_text("file door: ")

    # the next kernel holds no memory of those that were before it, and says so
    person.row(3, head="true").locator(".jp-mod-partial").wait_for()
    person.execute("kernelmenu:restart")
    person.accept()
    person.panel.locator(".jp-mod-boundary.jp-TimeTravel-badge").first.wait_for()
    person.expect(person.row(1).locator(".jp-mod-instant")).to_have_count(0)
    badge(1, "durable", "on disk")


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_right_to_left(person: Walker, server: Server, front_end: str) -> None:
    """The line is at the right then, the button at the left, and marks follow; code does not."""
    cells = ["r = 1; print('r', r)", "r = 2; print('r', r)"]
    person.open(front_end, server.notebook(f"rtl-{front_end}/r.ipynb", cells), 2)
    person.show_panel()
    person.run(0, "r 1")
    person.run(1, "r 2")
    person.row(2, head="true").wait_for()
    person.row(1).locator(".jp-TimeTravel-restore").click()
    with person.going_back():
        person.accept()
    person.undone(1)
    person.details(2)

    def order() -> list[str]:
        """The parts of a row from left to right; marks of the cell; columns of the details."""
        found = person.page.evaluate(
            """() => {
              const left = node => node.getBoundingClientRect().left;
              const row = document.querySelector('.jp-TimeTravel-row[data-number="1"]');
              const parts = ['.jp-TimeTravel-text', '.jp-TimeTravel-restore']
                .map(name => row.querySelector(name));
              parts.push(document.querySelector('.jp-TimeTravel-lines'));
              const first = row.querySelector('.jp-TimeTravel-first');
              const cell = document.querySelector('.jp-TimeTravel-undone');
              const box = cell.getBoundingClientRect();
              const mark = cell.querySelector('.jp-TimeTravel-mark').getBoundingClientRect();
              const head = document.querySelectorAll('.jp-TimeTravel-details thead th');
              const close = document.querySelector('.jp-TimeTravel-details header button');
              const title = document.querySelector('.jp-TimeTravel-details header h2');
              return [
                ...parts.sort((a, b) => left(a) - left(b)).map(node => node.classList[0].slice(14)),
                left(first.children[0]) < left(first.children[1]) ? 'number title' : 'title number',
                mark.left - box.left > box.right - mark.right ? 'mark right' : 'mark left',
                left(head[0]) < left(head[1]) ? 'bring name' : 'name bring',
                left(title) < left(close) ? 'title close' : 'close title'
              ];
            }"""
        )
        return [str(one) for one in found]

    usual = ["lines", "text", "restore", "number title", "mark right", "bring name", "title close"]
    turned = ["restore", "text", "lines", "title number", "mark left", "name bring", "close title"]
    assert order() == usual
    person.page.evaluate("() => void document.documentElement.setAttribute('dir', 'rtl')")
    assert order() == turned
    # nothing of it is cut off, and the code still reads from the left
    inside = person.page.evaluate(
        """() => {
          const panel = document.getElementById('jp-timetravel-panel').getBoundingClientRect();
          const parts = '.jp-TimeTravel-row > *, .jp-TimeTravel-lines';
          const isIn = ({ left, right }, box) => left >= box.left - 1 && right <= box.right + 1;
          const parent = document.getElementById('jp-timetravel-panel').parentNode;
          return isIn(panel, parent.getBoundingClientRect()) &&
            [...document.querySelectorAll(parts)].every(
              node => isIn(node.getBoundingClientRect(), panel));
        }"""
    )
    assert inside
    code = person.panel.locator(".jp-TimeTravel-details pre")
    assert code.evaluate("node => getComputedStyle(node).direction") == "ltr"
    # the lines are a picture: they are mirrored
    lines = person.panel.locator(".jp-TimeTravel-lines")
    assert lines.evaluate("node => new DOMMatrix(getComputedStyle(node).transform).a") == -1
    # and it works: a click, the keys
    person.row(2).locator(".jp-TimeTravel-restore").click()
    with person.going_back():
        person.accept()
    assert person.value("r") == "2"


@pytest.mark.timeout(900)  # a thousand cells, each with its checkpoint
def test_scrolling_through_a_thousand(person: Walker, server: Server) -> None:
    """At each step the rows in view are there, each at its place, and few others; so with keys."""
    path = server.notebook("scroll/s.ipynb", ["n = 0; print('n', n)"])
    person.open("lab", path, 1)
    person.show_panel()
    person.run(0, "n 0")
    person.row(1, head="true").wait_for()
    newest = max(server.runtime.glob("kernel-*.json"), key=lambda file: file.stat().st_mtime)
    person.page.goto("about:blank")  # faster: the kernel goes on
    client = BlockingKernelClient(connection_file=str(newest))
    client.load_connection_file()
    client.start_channels(hb=False)
    for _ in range(2, 1001):
        client.execute("n += 1")
        client.get_shell_msg(timeout=PATIENCE_MS / 1000)
    client.stop_channels()
    person.open("lab", path, 1)
    person.show_panel()
    rows = person.panel.locator('.jp-TimeTravel-rows[data-count="1001"]')
    rows.wait_for()
    seen: set[int] = set()
    step = 0
    while True:
        found = rows.evaluate(
            """async (box, top) => {
              const height = box.querySelector('.jp-TimeTravel-row').offsetHeight;
              box.scrollTop = top;
              const frame = () => new Promise(resolve => requestAnimationFrame(resolve));
              const inView = () => {
                const { top, bottom } = box.getBoundingClientRect();
                return [...box.querySelectorAll('.jp-TimeTravel-row')].filter(row => {
                  const place = row.getBoundingClientRect();
                  return place.bottom > top && place.top < bottom;
                });
              };
              const at = pixels => Math.ceil(Math.min(pixels, box.scrollHeight) / height);
              const areThere = () => {
                const shown = inView().map(row => Number(row.getAttribute('aria-posinset')));
                const { scrollTop, clientHeight } = box;
                return [1, clientHeight].every(more => shown.includes(at(scrollTop + more)));
              };
              const end = performance.now() + 60_000;
              while (!areThere() && performance.now() < end) await frame();
              await frame();
              return {
                rows: box.querySelectorAll('.jp-TimeTravel-row').length,
                nodes: box.querySelectorAll('*').length,
                shown: inView().map(row => [
                  Number(row.dataset.number), row.getBoundingClientRect().top]),
                height: box.clientHeight,
                row: height,
                atEnd: box.scrollTop + box.clientHeight >= box.scrollHeight - 1
              };
            }""",
            step,
        )
        shown = sorted(found["shown"], key=lambda row: row[1])
        numbers = [number for number, _ in shown]
        # newest first, none left out, none twice, each below the other
        assert numbers == list(range(numbers[0], numbers[0] - len(numbers), -1))
        gaps = {round(below[1] - above[1]) for above, below in pairwise(shown)}
        assert gaps == {found["row"]}
        assert len(numbers) * found["row"] >= found["height"]
        assert found["rows"] <= found["height"] / found["row"] + 2 + 2 * 3
        assert found["nodes"] < found["rows"] * 40
        seen.update(numbers)
        if found["atEnd"]:
            break
        step += int(found["height"] * 0.8)
    assert seen == set(range(1001))
    rows.focus()
    person.page.keyboard.press("Home")
    person.row(1000, head="true").wait_for()
    person.page.keyboard.press("End")
    person.row(0).wait_for()
    assert person.panel.locator(".jp-TimeTravel-row").count() < 80
