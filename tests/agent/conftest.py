"""The command line and the MCP server, beside kernels as servers start them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from agent_world import make_book

from jupyter_timetravel import cli


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """A notebook in a directory of its own."""
    return make_book(tmp_path / "work" / "n.ipynb")


@pytest.fixture
def on(start_notebook: Callable[..., Any]) -> Callable[..., Any]:
    """Start a kernel for a notebook, as a server does."""

    def start(book: Path, *arguments: str) -> Any:
        return start_notebook(
            *arguments, cwd=book.parent, env={"JPY_SESSION_NAME": str(book)}, listed=True
        )

    return start


@pytest.fixture
def tt(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run ``jupyter timetravel …``: what it prints, or with ``--json`` the object."""

    def run(*words: Any, status: int = 0) -> Any:
        capsys.readouterr()
        found = cli.main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert found == status, (found, out, err)
        assert "Traceback" not in err
        if "--json" in words:
            return json.loads(out)
        return err if status else out

    return run
