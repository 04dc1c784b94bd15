"""A confined process can compute and read, and nothing else: everything is tried in a real one."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

import pytest
from native_build import HERE, ORDINARY_UID, need

ROOT = HERE.parent.parent
WAYS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "as we are": ([], {}),
    "ordinary user": ([], {"user": ORDINARY_UID, "group": ORDINARY_UID, "extra_groups": []}),
    "user namespace": (["unshare", "--user", "--map-root-user"], {}),
}


BY_ROOT = {"ordinary user": pytest.mark.root}


@pytest.mark.parametrize("way", [pytest.param(w, marks=BY_ROOT.get(w, ())) for w in WAYS])
def test_everything_is_refused_that_reaches_out(way: str) -> None:
    prefix, options = WAYS[way]
    if prefix and subprocess.run([*prefix, "true"], capture_output=True).returncode:
        need("user namespaces")
    environment = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # each user can get there
        os.chmod(folder, 0o777)
        done = subprocess.run(
            [*prefix, sys.executable, str(HERE / "confined.py"), folder],
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
            timeout=60,
            **options,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name: e for name, e in found["refused"].items() if e != errno.EPERM} == {}
    assert {name: e for name, e in found["unknown"].items() if e != errno.ENOSYS} == {}
    assert found["thread"] == [errno.EPERM] * 2  # one that ran before
    assert found["works"] == [
        *("ok", "pair", "old pair", "pipe", "contents", ["thread"], 2, ["file"], True)
    ]
    assert found["again"] is None
