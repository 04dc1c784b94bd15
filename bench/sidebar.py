"""How long the sidebar takes from a click to what it shows, and what it costs a cell.

    python bench/sidebar.py [--rounds N] [--checkpoints N]

A real JupyterLab in a real Chromium (tests/browser/browsing.py), with the sidebar installed.
A restore is measured in the page, from the click (preview off) to the frame in which the panel, the
mark of the cell and the badge that counts such cells show it: each restore changes them. The
own time of the kernel, as its result tells it, is told apart.
Cells run one after the other, with the panel open and shut in turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright import sync_api

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

from browsing import CHROMIUM, CHROMIUM_OPTIONS, PATIENCE_MS, Notebook, running_server

CLICK = """async number => {
  const panel = [...jupyterapp.shell.widgets('right')].find(w => w.id === 'jp-timetravel-panel');
  const { timeline } = panel._shown;
  const record = [...timeline.records.values()].find(one => one.number === number);
  let took = null;
  timeline.restored.connect((_, { result }) => (took = result.took_ms));
  const frame = () => new Promise(resolve => requestAnimationFrame(resolve));
  const button = document.querySelector(
    `.jp-TimeTravel-row[data-number="${number}"] .jp-TimeTravel-restore`);
  const notebook = jupyterapp.shell.currentWidget.node;
  const undone = () => notebook.querySelectorAll('.jp-TimeTravel-undone').length;
  const badge = () => Number(
    notebook.querySelector('.jp-TimeTravel-undoneBadge button')?.dataset.count ?? 0);
  const wanted = 1 - undone(); // of one cell that ran
  const isShown = () =>
    took !== null &&
    undone() === wanted &&
    badge() === wanted &&
    document.querySelector(`.jp-TimeTravel-row[data-number="${number}"][data-head="true"]`) &&
    panel.node.dataset.running === 'false';
  const begin = performance.now();
  button.click();
  while (!isShown()) {
    await frame();
  }
  await frame();
  return [performance.now() - begin, took];
}"""
RUN = """async () => {
  const { content, sessionContext } = jupyterapp.shell.currentWidget;
  content.activeCellIndex = 0;
  const begin = performance.now();
  await jupyterapp.commands.execute('notebook:run-cell');
  return performance.now() - begin;
}"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--checkpoints", type=int, default=20)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as top,
        running_server(Path(top)) as server,
        sync_api.sync_playwright() as engine,
    ):
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_OPTIONS)
        page = browser.new_page(viewport={"width": 1600, "height": 1200})
        page.set_default_timeout(PATIENCE_MS)
        sync_api.expect.set_options(timeout=PATIENCE_MS)
        sent: list[bytes | str] = []
        page.on("websocket", lambda socket: socket.on("framesent", lambda one: sent.append(one)))
        person = Notebook(page, server, sync_api.expect)
        cells = ["n = 1; print('n', n)", "n += 1; print('n', n)"]
        person.open("lab", server.notebook("bench.ipynb", cells), 2)
        person.show_panel()
        for _ in range(options.checkpoints):
            page.evaluate(RUN)
        run_cells(person, sent, options.rounds)
        restores(person, options.rounds)
        browser.close()


def restores(person: Notebook, rounds: int) -> None:
    """From the click to the frame that shows it, without the kernel's own time."""
    person.show_panel()
    settle(person)
    numbers = person.page.evaluate(
        "() => [...document.querySelectorAll('.jp-TimeTravel-row')].map(r => +r.dataset.number)"
    )
    number = numbers[2]
    row = person.row(number)
    row.locator(".jp-TimeTravel-restore").click()
    person.page.locator('.jp-Dialog input[name="preview"]').check()  # do not show this again
    person.accept()
    person.row(number, head="true").wait_for()
    beyond, own = [], []
    for _ in range(rounds):
        settle(person)
        shown = person.page.evaluate(
            "() => [...document.querySelectorAll('.jp-TimeTravel-row')]"
            ".filter(r => r.dataset.head !== 'true').map(r => +r.dataset.number)"
        )
        # the newest of the others is where the session was before the last restore
        total, took = person.page.evaluate(CLICK, shown[0])
        beyond.append(total - took)
        own.append(took)
    tell("click to shown, beyond the kernel's own restore (aim 150 ms)", beyond)
    tell("the kernel's own restore", own)


def run_cells(person: Notebook, sent: list[Any], rounds: int) -> None:
    """A cell from the command to its end, with the panel open and shut."""
    times: dict[bool, list[float]] = {True: [], False: []}
    requests = {True: 0, False: 0}
    for at in range(2 * rounds):
        is_open = at % 10 < 5
        if at % 5 == 0:
            command = "show" if is_open else "hide"
            person.page.evaluate(
                "([command]) => { const panel = [...jupyterapp.shell.widgets('right')].find("
                "w => w.id === 'jp-timetravel-panel'); command === 'show'"
                " ? jupyterapp.shell.activateById(panel.id) : jupyterapp.shell.collapseRight(); }",
                [command],
            )
            settle(person)
        before = len(sent)
        times[is_open].append(person.page.evaluate(RUN))
        requests[is_open] += sum(
            b"timetravel_request" in (one if isinstance(one, bytes) else one.encode())
            for one in sent[before:]
        )
    tell("a trivial cell, the panel open", times[True])
    tell("a trivial cell, the panel shut", times[False])
    more = statistics.median(times[True]) - statistics.median(times[False])
    print(f"the panel adds {more:.1f} ms to a cell (aim 2 ms)")
    print(
        f"requests of time travel while a cell ran: {requests[True]} open, {requests[False]} shut"
    )


def settle(person: Notebook) -> None:
    """Let what waits for a pause be done."""
    person.page.wait_for_timeout(1500)


def tell(what: str, values: list[float]) -> None:
    low, median, high = statistics.quantiles(values, n=4)
    print(f"{what}: median {median:.1f} ms ({low:.1f} to {high:.1f}), {len(values)} times")


if __name__ == "__main__":
    main()
