"""docs/server.md says what there is, and its examples work."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from jupyter_timetravel.server.openapi import actions
from tests.conftest import ROOT
from tests.server.server_world import Kernel, Server

PAGE = (ROOT / "docs" / "server.md").read_text()


def test_the_table_has_every_route_and_its_permission() -> None:
    rows = re.findall(r"^\| `([A-Z]+) (/\S*)` \| .* \| (\w+) \|$", PAGE, re.MULTILINE)
    assert {(path, verb): action for verb, path, action in rows} == actions()


def test_the_examples_of_the_page_work(
    server: Server,
    start: Callable[..., Kernel],
    tmp_path: Path,
    ability: Callable[[str, bool], None],
) -> None:
    ability("curl", shutil.which("curl") is not None)
    kernel = start("examples/a.ipynb")
    kernel.run("x = 1")
    kernel.run("y = 2")
    (script,) = re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=tmp_path,
        env={
            "PATH": "/usr/bin:/bin",
            "URL": server.url,
            "TOKEN": "owner",
            "NOTEBOOK": "examples/a.ipynb",
        },
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "timeline.ttl").read_bytes()[:4] == b"\x28\xb5\x2f\xfd"
    cells = json.loads((tmp_path / "clean.ipynb").read_text())["cells"]
    assert [cell["source"] for cell in cells] == [["x = 1"], ["y = 2"]]
    assert '"type": "result"' in done.stdout
