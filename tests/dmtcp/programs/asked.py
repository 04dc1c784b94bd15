"""Serve one file of questions: whenever its content changes, answer with a line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path


def serve(answer: Callable[[], object]) -> None:
    """Never returns."""
    ask, output = Path(sys.argv[1]), Path(sys.argv[2])
    last = ""
    while True:
        text = ask.read_text() if ask.exists() else ""
        if text != last and text.endswith("\n"):
            last = text
            with open(output, "a") as file:
                file.write(f"{answer()}\n")
        time.sleep(0.02)
