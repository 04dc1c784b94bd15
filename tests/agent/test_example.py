"""The example does what its page says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import ROOT


def test_the_scripted_agent_recovers(tmp_path: Path, start_notebook: Callable[..., Any]) -> None:
    folder = tmp_path / "agent"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "agent" / "agent.py"), str(folder)],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 mistakes were made, and nothing of them is left." in done.stdout
    assert (folder / "data" / "orders.csv").read_text().startswith("id,price")
    assert not (folder / "data" / "tmp").exists()
    assert "licence key" not in (folder / "libs" / "prices.py").read_text()
