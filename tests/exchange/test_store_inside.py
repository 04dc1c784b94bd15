"""Case store-13: the store lies inside the workspace that it captures, with real kernels."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.exchange.conftest import call, end, write_notebook


@pytest.mark.parametrize(
    "how", ["directory", "symlink", pytest.param("bind mount", marks=pytest.mark.root)]
)
def test_the_store_in_the_workspace(
    how: str, start_notebook: Callable[..., Any], tmp_path: Path, ability: Callable[..., None]
) -> None:
    ability("root (for a bind mount)", how != "bind mount" or os.geteuid() == 0)
    W = tmp_path / "P"
    write_notebook(W / "a.ipynb", "1")
    inside = W / ".timetravel"
    inside.mkdir()
    (W / "seen").mkdir()
    store = inside
    with contextlib.ExitStack() as stack:
        if how == "symlink":
            (W / "link").symlink_to(inside)
            store = W / "link"
        elif how == "bind mount":
            subprocess.run(["mount", "--bind", inside, W / "seen"], check=True)
            stack.callback(subprocess.run, ["umount", "-l", W / "seen"], check=True)
        env = {
            "JPY_SESSION_NAME": str(W / "a.ipynb"),
            "JUPYTER_TIMETRAVEL_STORE": str(store),
            "JUPYTER_TIMETRAVEL_KEYS": str(tmp_path / "keys"),
        }
        # an image of the process has its own size
        kernel = start_notebook("--Supervisor.images=False", cwd=W, env=env)
        for text in ("one", "two", "three"):
            kernel.run(f"open('f', 'w').write({text!r})")
            kernel.run(f"%checkpoint --label {text}")
        kernel.run("%restore one")
        assert (W / "f").read_text() == "one"
        if kernel.command("status")["environment"]["covered"]:
            # a cell must not be able to delete the history that would undo it
            kernel.run("import shutil; shutil.rmtree('.timetravel', ignore_errors=True)")
        for text in ("three", "two"):
            kernel.run(f"%restore {text}")
            assert (W / "f").read_text() == text
        end(kernel)
        listed = json.loads(call("list", W / "a.ipynb", "--json", store=store))["checkpoints"]
        assert {"one", "two", "three"} <= {c["label"] for c in listed}
        # the reserve of an environment is held back on purpose, and is no copy of anything
        files = [p for p in inside.rglob("*") if p.is_file() and p.name != "reserve"]
        assert sum(p.lstat().st_size for p in files) < 5 << 20
