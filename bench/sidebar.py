"""How long the sidebar takes from a click to what it shows, and what it costs a cell.

    python bench/sidebar.py [--rounds N] [--checkpoints N]

A real JupyterLab in a real Chromium (tests/browser/browsing.py), with the sidebar installed.
A restore is measured in the page, from the click (preview off) to the frame in which the panel, the
mark of the cell and the badge that counts such cells show it: each restore changes them. The
own time of the kernel, as its result tells it, is told apart.
Cells run one after the other, with the panel open, shut, and in a page without the sidebar in
turns; a difference of medians has the interval in which 95 of 100 resamplings (bootstrap) lie.
Beside the time on the clock there is that of the page's main thread on a processor: script, layout
and paint, from the command to the end of the cell, and of the pause after ten of them. Other work
on the machine delays the one, but not the other.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright import sync_api

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

from browsing import CHROMIUM, CHROMIUM_OPTIONS, PATIENCE_MS, Notebook, Server, running_server

BLOCK = 10

CLICK = """async number => {
  const panel = [...jupyterapp.shell.widgets('right')].find(w => w.id === 'jp-timetravel-panel');
  const { timeline } = panel._shown;
  const record = [...timeline.records.values()].find(one => one.number === number);
  let took = null;
  timeline.restored.connect((_, result) => (took = result.took_ms));
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
RESTS = "of the pause after ten of them"
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
        other = without_sidebar(browser, server, cells)
        for one in (person, other):
            one.page.mouse.move(1, 1)  # what the pointer is over is looked up after each layout
        run_cells(person, other, sent, options.rounds)
        other.page.close()
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


def without_sidebar(browser: Any, server: Server, cells: list[str]) -> Notebook:
    """A page of the same server that does not load the sidebar, with a kernel of its own."""
    config = server.folder.parent / "home" / ".jupyter" / "labconfig" / "page_config.json"
    disabled = json.loads(config.read_text())["disabledExtensions"]
    config.write_text(json.dumps({"disabledExtensions": {**disabled, "jupyter-timetravel": True}}))
    page = browser.new_page(viewport={"width": 1600, "height": 1200})
    page.set_default_timeout(PATIENCE_MS)
    other = Notebook(page, server, sync_api.expect)
    other.open("lab", server.notebook("without.ipynb", cells), 2)
    return other


def main_thread(page: Any) -> Any:
    """Something that tells for how many milliseconds the page's main thread was on a processor."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def used() -> float:
        told = {
            one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]
        }
        return 1000 * float(told["TaskDuration"])

    return used


def run_cells(person: Notebook, other: Notebook, sent: list[Any], rounds: int) -> None:
    """A cell from the command to its end, with the panel open, shut, and without the sidebar."""
    times: dict[str, list[float]] = {"open": [], "shut": [], "without": []}
    busy: dict[str, list[float]] = {how: [] for how in times}
    rests: dict[str, list[float]] = {how: [] for how in times}
    threads = {on.page: main_thread(on.page) for on in (person, other)}
    requests = dict.fromkeys(times, 0)
    for block in range(3 * rounds // BLOCK):
        # each comes first, second and third equally often
        how = list(times)[(block + block // 3) % 3]
        on = other if how == "without" else person
        on.page.bring_to_front()
        if on is person:
            person.page.evaluate(
                "([command]) => { const panel = [...jupyterapp.shell.widgets('right')].find("
                "w => w.id === 'jp-timetravel-panel'); command === 'open'"
                " ? jupyterapp.shell.activateById(panel.id) : jupyterapp.shell.collapseRight(); }",
                [how],
            )
        settle(on)
        on.page.evaluate(RUN)  # the first one after a pause is another thing
        before = len(sent)
        for _ in range(BLOCK):
            begun = threads[on.page]()
            times[how].append(on.page.evaluate(RUN))
            busy[how].append(threads[on.page]() - begun)
        requests[how] += sum(
            b"timetravel_request" in (one if isinstance(one, bytes) else one.encode())
            for one in sent[before:]
        )
        begun = threads[on.page]()
        settle(on)
        rests[how].append(threads[on.page]() - begun)
    for what, all_of in (("on the clock", times), ("of the main thread", busy), (RESTS, rests)):
        for how, values in all_of.items():
            tell(f"a trivial cell, the panel {how}, {what}", values)
        difference(f"the panel open, more than shut, {what}", all_of["open"], all_of["shut"])
        difference(f"the panel open, more than without, {what}", all_of["open"], all_of["without"])
    print(
        f"requests of time travel while a cell ran: {requests['open']} open, "
        f"{requests['shut']} shut"
    )


def difference(what: str, values: list[float], others: list[float]) -> None:
    """Of the medians, with its confidence interval."""
    source = random.Random(0)

    def resampled(all: list[float]) -> float:
        return statistics.median(source.choices(all, k=len(all)))

    by_chance = sorted(resampled(values) - resampled(others) for _ in range(2000))
    more = statistics.median(values) - statistics.median(others)
    print(f"{what}: {more:.1f} ms ({by_chance[50]:.1f} to {by_chance[1949]:.1f})")


def settle(person: Notebook) -> None:
    """Let what waits for a pause be done."""
    person.page.wait_for_timeout(1500)


def tell(what: str, values: list[float]) -> None:
    low, median, high = statistics.quantiles(values, n=4)
    print(f"{what}: median {median:.1f} ms ({low:.1f} to {high:.1f}), {len(values)} times")


if __name__ == "__main__":
    main()
