"""A Jupyter server and a person at its pages. Nothing is waited for by time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.servers import address

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
AXE = Path(__file__).parents[2] / "labextension" / "node_modules" / "axe-core" / "axe.min.js"
TOKEN = "browser-test"
PATIENCE_MS = 120_000
THEMES = ("JupyterLab Dark", "JupyterLab Light")  # the usual one last: settings stay
FRONT_ENDS = {"lab": "lab/tree", "notebook": "notebooks"}  # name: path of its page of a notebook
CHROMIUM_OPTIONS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@dataclass
class Server:
    """One that runs: its address, its folder of notebooks, its folder of connection files."""

    url: str
    folder: Path
    runtime: Path

    def notebook(self, path: str, cells: Sequence[str], kernel: str = "python3-timetravel") -> str:
        """Write a notebook, and return its path from the server's folder."""
        document = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(source) for source in cells],
            metadata={"kernelspec": {"name": kernel, "display_name": "x"}},
        )
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(document, self.folder / path)
        return path


@contextmanager
def running_server(
    root: Path, prefix: Path | None = None, options: Sequence[str] = ()
) -> Iterator[Server]:
    """A server of its own, with a home of its own; prefix: where more extensions are installed."""
    notebooks, home, runtime = root / "notebooks", root / "home", root / "server-info"
    settings = home / ".jupyter" / "labconfig"
    for folder in (notebooks, settings):
        folder.mkdir(parents=True)
    news = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    (settings / "page_config.json").write_text(json.dumps(news))
    env = {**os.environ, "HOME": str(home), "JUPYTER_RUNTIME_DIR": str(runtime)}
    if prefix is not None:
        (packages,) = prefix.glob("lib/python*/site-packages")
        for name, path in (
            ("PYTHONPATH", packages),
            ("JUPYTER_PATH", prefix / "share" / "jupyter"),
            ("JUPYTER_CONFIG_PATH", prefix / "etc" / "jupyter"),
        ):
            env[name] = os.pathsep.join(filter(None, [str(path), env.get(name)]))
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += ["--ServerApp.port=0", f"--IdentityProvider.token={TOKEN}"]
    command += [f"--{app}.expose_app_in_browser=True" for app in ("LabApp", "JupyterNotebookApp")]
    # a kernel that has ended is noticed sooner than after three seconds, each time
    command += ["--KernelRestarter.time_to_dead=0.5", *options]
    with (root / "server.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=notebooks, env=env, stdout=log, stderr=log)
    try:
        url = address(process, runtime, root / "server.log")
        yield Server(url, notebooks, runtime)
    finally:
        process.terminate()
        process.wait(timeout=240)  # its kernels write down what they hold


def edit(page: Any, cell: Any) -> None:
    """Put the cursor into a cell of a page, and wait until keys are for it."""
    cell.locator(".cm-content").click()
    cell.locator(".cm-editor.cm-focused").wait_for()
    # a moment later: keys are none of the notebook's before
    page.locator(".jp-Notebook.jp-mod-editMode .cm-focused").wait_for()


@dataclass
class Notebook:
    """A person at a notebook, with the sidebar beside it."""

    page: Any
    server: Server
    expect: Any

    def open(self, front_end: str, path: str, cells: int, status: str = "idle") -> None:
        """Go to the page of a notebook, and wait until its kernel is there."""
        self.page.goto(f"{self.server.url}{FRONT_ENDS[front_end]}/{path}?token={TOKEN}&reset")
        self.wait(cells, status)

    def wait(self, cells: int, status: str = "idle") -> None:
        self.cell(cells - 1).wait_for()
        # in a narrow toolbar it is there, but not in view. In JupyterLab the indicator misses a
        # change of the kernel's state now and then, the status bar does not
        indicator = f'.jp-Notebook-ExecutionIndicator[data-status="{status}"]'
        bar = f'#jp-main-statusbar :text-matches("\\| {status}$", "i")'
        self.page.locator(f"{indicator}, {bar}").first.wait_for(state="attached")

    @property
    def panel(self) -> Any:
        return self.page.locator("#jp-timetravel-panel")

    def show_panel(self, state: str = "ready") -> None:
        """Open the sidebar by the notebook's toolbar."""
        if not self.panel.is_visible():
            self.page.locator(".jp-TimeTravel-toolbarButton").first.click()
            self.page.get_by_role("menuitem", name="Show the Timeline").click()
        self.in_state(state)

    def in_state(self, state: str) -> None:
        self.page.locator(f'#jp-timetravel-panel[data-state="{state}"]').wait_for()

    def cell(self, index: int) -> Any:
        """One of the cells on screen."""
        visible = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-CodeCell"
        return self.page.locator(visible).nth(index)

    def edit(self, index: int) -> None:
        """Put the cursor into a cell."""
        edit(self.page, self.cell(index))

    def run(self, index: int, text: str | None = None) -> None:
        """Run a cell as a person would, and wait for what it prints."""
        cell = self.cell(index)
        self.edit(index)
        self.page.keyboard.press("Control+Enter")
        if text is not None:
            output = cell.locator(".jp-OutputArea-output").last
            self.expect(output).to_contain_text(text, timeout=PATIENCE_MS)

    def row(self, number: int, **marks: str) -> Any:
        """A row of the list; ``head="true"`` for the present."""
        given = "".join(f'[data-{name}="{value}"]' for name, value in marks.items())
        return self.panel.locator(f'.jp-TimeTravel-row[data-number="{number}"]{given}')

    def choose(self, number: int, name: str) -> None:
        """Something of a row's menu."""
        self.row(number).click(button="right")
        self.page.get_by_role("menuitem", name=name, exact=True).click()

    def kept(self, number: int) -> None:
        """Wait until the kernel has the notebook as it was at a checkpoint."""
        self.page.wait_for_function(
            """number => {
              const panel = [...jupyterapp.shell.widgets('right')].find(
                widget => widget.id === 'jp-timetravel-panel');
              const records = [...panel._shown.timeline.records.values()];
              return records.find(record => record.number === number)?.captures
                .some(capture => capture.kind === 'document' && capture.state === 'ready');
            }""",
            arg=number,
        )

    def restore(self, number: int, *, preview: bool = True, cells: bool = False) -> None:
        """Click a row's button, and the dialog's; wait until it is the present."""
        self.still()
        self.row(number).locator(".jp-TimeTravel-restore").click()
        if preview:
            self.accept(cells=cells)
        self.row(number, head="true").wait_for()

    def still(self) -> None:
        """Wait until the list stands still: a click is lost on a row that moves in that moment."""
        self.page.evaluate(
            """async () => {
              const shown = () => [...document.querySelectorAll('.jp-TimeTravel-row')]
                .map(row => row.dataset.number).join();
              for (let before = null; before !== shown(); ) {
                before = shown();
                await new Promise(resolve => setTimeout(resolve, 300));
              }
            }"""
        )

    def accept(self, *, cells: bool = False) -> None:
        dialog = self.page.locator(".jp-Dialog")
        if cells:
            dialog.locator('input[name="notebook"]').check()
        dialog.locator("button.jp-mod-accept, button.jp-mod-warn").last.click()
        dialog.wait_for(state="detached")

    def notified(self, text: str) -> Any:
        return self.page.locator(".Toastify__toast", has_text=text).last

    def execute(self, command: str, **args: Any) -> None:
        """Run one of the front end's commands by name."""
        self.page.evaluate(
            "([id, args]) => void window.jupyterapp.commands.execute(id, args)", [command, args]
        )

    def serious(self, selector: str) -> list[Any]:
        """What axe finds in a part of the page that is serious."""
        if not AXE.exists():
            pytest.fail("missing ability: axe-core (npm ci in labextension)")
        self.page.add_script_tag(path=str(AXE))
        found = self.page.evaluate("selector => axe.run(selector)", selector)
        return [
            (violation["id"], violation["nodes"][0]["html"])
            for violation in found["violations"]
            if violation["impact"] in ("serious", "critical")
        ]

    def themed(self) -> Iterator[str]:
        """Look at the page in one theme after the other."""
        for theme in THEMES:
            self.execute("apputils:change-theme", theme=theme)
            self.page.locator(f'body[data-jp-theme-name="{theme}"]').wait_for(state="attached")
            yield theme.split()[-1]

    def serious_in_a_theme(self, selector: str, pictures: Path, name: str) -> list[Any]:
        """What axe finds that is serious, in either theme; how it looks is in the pictures."""
        found = []
        for theme in self.themed():
            self.page.screenshot(path=str(pictures / f"{name}-{theme}.png"))
            found += [(theme, *one) for one in self.serious(selector)]
        return found

    def save(self) -> None:
        """Save, and wait until the server has written it."""
        with self.page.expect_response(lambda answer: answer.request.method == "PUT"):
            self.page.keyboard.press("Control+s")

    def undone(self, count: int) -> None:
        """Wait until so many cells are marked as undone."""
        front = ".jp-NotebookPanel:not(.lm-mod-hidden)"
        self.page.locator(f'{front}[data-timetravel-undone="{count}"]').wait_for()
        self.expect(self.page.locator(".jp-TimeTravel-undone")).to_have_count(count)
