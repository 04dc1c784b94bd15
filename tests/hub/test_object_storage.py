"""Servers that leave nothing behind: what docs/hub.md says of object storage, with a real hub.

Each user's server is started by examples/hub/resuming_server.py; the storage is moto's S3 server.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest

from tests.conftest import ROOT, needs, open_up
from tests.exhaustive import times
from tests.hub.test_hub import PROXY, Hub, User, kept, running
from tests.remote.conftest import Remote, endpoint, s3
from tests.waiting import until

__all__ = ["endpoint", "s3"]
pytestmark = [pytest.mark.hub, pytest.mark.slow]

SINGLEUSER = f'"{sys.executable}", "-m", "jupyterhub.singleuser", "--allow-root"'
PAGE = ROOT / "docs" / "hub.md"


def configuration() -> str:
    """What the page says, as it stands there."""
    [block] = re.findall(r"```python\n(# object storage\n.*?)```", PAGE.read_text(), re.DOTALL)
    return str(block)


@pytest.fixture
def hub(tmp_path: Path, s3: Remote) -> Iterator[Hub]:
    needs("JupyterHub", find_spec("jupyterhub") is not None)
    needs("JupyterHub's proxy: configurable-http-proxy, or TT_PROXY", bool(PROXY))
    (tmp_path / "keys").mkdir(mode=0o700)
    said = configuration()
    for given, here in (
        ("python3", sys.executable),
        ("/opt/resuming_server.py", str(ROOT / "examples" / "hub" / "resuming_server.py")),
        ("s3://BUCKET/homes", s3.url),
        ("/srv/keys", str(tmp_path / "keys")),
        (
            '"jupyterhub-singleuser"',
            f'"{sys.executable}", "-m", "jupyterhub.singleuser", "--allow-root"',
        ),
    ):
        assert given in said
        said = said.replace(given, here)
    os.environ.update(s3.env)
    try:
        with running(tmp_path, said) as made:
            yield made
    finally:
        for name in s3.env:
            del os.environ[name]


def lose_everything(user: User) -> None:
    """As when a container without a volume is gone."""

    def gone() -> bool:  # a kernel that ends tidies up
        open_up(user.home)
        shutil.rmtree(user.home, ignore_errors=True)
        return not user.home.exists()

    until(gone)


def log(hub: Hub) -> str:
    return (hub.root / "log").read_text()[-5000:]


def test_a_culled_server_resumes_from_object_storage(hub: Hub, s3: Remote) -> None:
    users = [hub.sign_in(name) for name in ("one", "two")]
    for number, user in enumerate(users):
        cells = [nbformat.v4.new_code_cell(f"of_user = {number}")]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), user.home / "a.ipynb")
        kernel = user.open("a.ipynb")
        assert user.run(kernel, f"x = {number}; open('data', 'w').write('{user.name}')") == ""
        with user.client(kernel) as client:
            client.checkpoint("kept", label="kept")
            kept(client, "kept")
    # the second time it is what was pulled that is pushed: one user shows that
    for turn, some in enumerate((users, users[: times(2, 1)])):
        for user in some:
            user.stop()
            lose_everything(user)
        for number, user in enumerate(some):
            assert len(s3.names(f"{user.name}/refs")) == 1, "what was pulled is taken out"
            user.start()
            assert (user.home / "data").read_text() == user.name, log(hub)
            notebook = nbformat.read(user.home / "a.ipynb", as_version=4)
            assert notebook.cells[0].source == f"of_user = {number}"
            kernel = user.open("a.ipynb")
            assert user.run(kernel, "print(x)").splitlines()[-1] == str(number + 10 * turn)
            with user.client(kernel) as client:
                assert client.get("kept").label == "kept"
                assert user.run(kernel, "x += 10").splitlines()[-1:] in ([], [""])
                client.checkpoint("again", label=f"turn{turn}")
                kept(client, f"turn{turn}")
    for user in users:
        told = user.get("api/timetravel/sessions").json()["sessions"]
        assert [one["notebook"] for one in told] == ["a.ipynb"], "each sees his own"
