"""A person who tries everything, and looks into the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from browsing import Notebook
from playwright.sync_api import TimeoutError as NeverCame

PANEL = "[...jupyterapp.shell.widgets('right')].find(one => one.id === 'jp-timetravel-panel')"

ASK = f"""\
async expression => {{
  const {{ kernel }} = {PANEL}._shown.timeline.context.session;
  const user_expressions = {{ asked: expression }};
  const future = kernel.requestExecute({{ code: '', silent: true, user_expressions }});
  const {{ asked }} = (await future.done).content.user_expressions;
  return asked.status === 'ok' ? asked.data['text/plain'] : `${{asked.ename}}: ${{asked.evalue}}`;
}}"""

COUNT = f"""\
() => {{
  const {{ timeline }} = {PANEL}._shown;
  if (window.counted !== timeline) {{
    window.counted = timeline;
    timeline.restored.connect(() => window.wentBack++);
  }}
  window.wentBack = 0;
}}"""

WHERE = f"""\
() => {{
  const {{ timeline }} = {PANEL}._shown;
  const toasts = [...document.querySelectorAll('.Toastify__toast')].map(one => one.textContent);
  const {{ state, running, notice, isBusy }} = timeline;
  const isCounted = window.counted === timeline;
  const went = window.wentBack;
  return JSON.stringify({{ went, isCounted, state, running, notice, isBusy, toasts }});
}}"""
"""What a page shows that has not gone back, or too often."""


def all_commands(person: Notebook) -> set[str]:
    """The names of the sidebar's commands."""
    listed = person.page.evaluate("() => jupyterapp.commands.listCommands()")
    return {id for id in listed if id.startswith("timetravel:")}


class Walker(Notebook):
    """A person at a notebook who looks at everything."""

    def note_commands(self) -> None:
        """Note from now on which commands are carried out."""
        self.page.evaluate(
            """() => {
              window.executed = new Set();
              jupyterapp.commands.commandExecuted.connect((_, { id }) => window.executed.add(id));
            }"""
        )

    def executed(self) -> set[str]:
        return set(self.page.evaluate("() => [...window.executed]"))

    def value(self, expression: str) -> str:
        """The value of an expression in the kernel, asked for without leaving a trace."""
        return str(self.page.evaluate(ASK, expression))

    @contextmanager
    def going_back(self) -> Iterator[None]:
        """Wait until what is done in it has taken the session back, once."""
        self.page.evaluate(COUNT)
        yield
        try:
            self.page.wait_for_function(
                f"() => window.wentBack === 1 && {PANEL}._shown.timeline.running === null"
            )
        except NeverCame as late:
            raise AssertionError(self.page.evaluate(WHERE)) from late
        self.expect(self.panel).to_have_attribute("data-running", "false")

    @property
    def dialog(self) -> Any:
        return self.page.locator(".jp-Dialog")

    def refuse(self) -> None:
        """Cancel a dialog, or close one that only shows."""
        self.dialog.locator("button.jp-mod-reject").click()
        self.dialog.wait_for(state="detached")

    def dismiss(self) -> None:
        """Take all notifications away."""
        self.execute("apputils:dismiss-notification")
        self.expect(self.page.locator(".Toastify__toast")).to_have_count(0)

    def details(self, number: int) -> Any:
        """The details of a checkpoint, opened by a click on its row."""
        found = self.panel.locator(f'.jp-TimeTravel-details[data-number="{number}"]')
        if not found.is_visible():
            self.row(number).locator(".jp-TimeTravel-number").click()
        found.locator("table[data-loaded]").wait_for()
        return found

    def close_details(self) -> None:
        self.panel.get_by_role("button", name="Close", exact=True).click()
        self.expect(self.panel.locator(".jp-TimeTravel-details")).to_have_count(0)

    def press(self, number: int, command: str) -> None:
        """A button of a checkpoint's details."""
        self.details(number).locator(f'[data-command="timetravel:{command}"]').click()

    def from_menu(self, label: str, menu: str = "") -> None:
        """An entry of the clock's menu in the toolbar, or of a menu of the menu bar."""
        if menu:
            self.page.locator(".lm-MenuBar-item", has_text=menu).first.click()
        else:
            self.page.locator(".jp-TimeTravel-toolbarButton").first.click()
        self.page.get_by_role("menuitem", name=label).first.click()

    def toggle(self, setting: str, *, on: bool) -> None:
        """Change a setting in the settings editor, and go back to the notebook."""
        title = self.panel.locator("h2[data-document]").get_attribute("data-document")
        self.execute("settingeditor:open", query="Time Travel")
        box = self.page.locator(f'[id="jp-SettingsEditor-jupyter-timetravel:plugin_{setting}"]')
        box.set_checked(on)
        self.page.wait_for_function(
            f"([name, on]) => {PANEL}._options.settings()[name] === on", arg=[setting, on]
        )
        self.page.locator(".lm-TabBar-tab", has_text=title).first.click()
        self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)").wait_for()
