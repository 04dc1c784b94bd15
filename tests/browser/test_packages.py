"""A package that a cell installs: counted in its row, named in the preview and in the diff view."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Server
from walking import Walker

from tests.environment.environment_tools import make_venv, make_wheel, pip_install, site_packages

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("jupyterlab", reason="needs JupyterLab")

VERSION = "from importlib.metadata import version; print('is', version('tinynum'))"


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder of the home directory, which the environment covers; /tmp is the machine's own."""
    made = Path(tempfile.mkdtemp(prefix="tt-packages-", dir=os.path.expanduser("~")))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def person(server: Server, page: Any) -> Walker:
    return Walker(page, server, playwright.expect)


def test_a_package_is_counted_and_named(person: Walker, server: Server, place: Path) -> None:
    """One that is changed and one that is added, before and after."""
    wheels = place / "wheels"
    for name, version in (("tinynum", "1.0"), ("tinynum", "2.0"), ("tinytext", "0.3")):
        make_wheel(wheels, name, version, {f"{name}/__init__.py": ""})
    python = make_venv(place / "venv")
    pip_install(python, wheels, "tinynum==1.0")
    begin = f"import sys; sys.path.insert(0, {str(site_packages(place / 'venv'))!r}); {VERSION}"
    install = (
        f"!{sys.executable} -m pip --python {python} install --quiet --no-index"
        f" --disable-pip-version-check --find-links {wheels} tinynum==2.0 tinytext\n{VERSION}"
    )
    person.open("lab", server.notebook("packages/p.ipynb", [begin, install, VERSION]), 3)
    person.show_panel()
    person.run(0, "is 1.0")
    person.row(1, head="true").wait_for()
    person.run(1)  # below it stands a notice, that only this notebook sees the package
    person.expect(person.cell(1)).to_contain_text("is 2.0")
    person.row(2, head="true").wait_for()

    counted = person.row(2).locator(".jp-TimeTravel-changed span", has_text="package")
    person.expect(counted).to_have_text("2 packages")
    assert set(counted.get_attribute("title").splitlines()) == {"~ tinynum", "+ tinytext"}
    first = person.row(1).locator(".jp-TimeTravel-changed")
    first.wait_for()
    assert "package" not in first.inner_text()

    def lines() -> list[list[str]]:
        """The table of packages of the dialog: sign, name, from, to."""
        rows = person.dialog.locator('section[data-kind="packages"] tr[data-name]')
        person.expect(rows).to_have_count(2)
        return sorted(
            [row.get_attribute("data-sign"), *row.locator("th, td").all_inner_texts()[1:]]
            for row in rows.all()
        )

    person.choose(2, "What It Changed")
    assert lines() == [["+", "tinytext", "", "0.3"], ["~", "tinynum", "1.0", "2.0"]]
    person.refuse()
    person.row(1).locator(".jp-TimeTravel-restore").click()
    assert lines() == [["~", "tinynum", "2.0", "1.0"], ["−", "tinytext", "0.3", ""]]
    with person.going_back():
        person.accept()
    person.run(2, "is 1.0")
    with person.going_back():
        person.panel.locator('[data-command="timetravel:undo"]').click()
    person.run(2, "is 2.0")
