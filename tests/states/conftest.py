"""Fixtures of tests through kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    """What starts a kernel of one notebook, again and again."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "n.ipynb").write_text("{}")
    return {"cwd": work, "env": {"JPY_SESSION_NAME": str(work / "n.ipynb")}}
