"""A store with a secret in it, and the command that takes it out, as a process of its own: the
power is cut, or the disk is full, somewhere in here. What is done is told in the file ``told``."""

from __future__ import annotations

import os
import pickle
import random
import sys
from contextlib import closing
from pathlib import Path

from store_world import Session

from jupyter_timetravel import cli
from kernel_runtime.timeline.cells import Cell

SECRET = "TTSECRET-" + "4f9a1c" * 4
NOISE = random.Random(1).randbytes(20_000)
HOLDS = NOISE[:9000] + SECRET.encode() + NOISE[9033:]
"""What ``NOISE`` is stored as a delta to."""


def make(base: Path) -> Session:
    """Three checkpoints, the secret in the first two: as a variable, a file, a cell, a comment."""
    session = Session(base)
    with closing(session):
        session.write("keep", "k" * 100_000)
        session.write(".env", f"K={SECRET}")
        small = pickle.dumps(((), (("a", 1), ("tok", SECRET)), []), 5)
        cell = Cell("c1", f"tok = '{SECRET}'", None, 1, "ok", None, 0.0, 0.0)
        session.checkpoint(HOLDS, small, SECRET.encode() * 9, comment="one", cells=[cell])
        session.write("more", "m" * 1000)
        session.checkpoint(NOISE, small, comment=f"has {SECRET}")
        os.remove(session.notebook.parent / ".env")
        session.checkpoint(NOISE, comment="three")
    return session


def redact(base: Path) -> int:
    """Returns the exit status."""
    os.environ["JUPYTER_TIMETRAVEL_KEYS"] = str(base / "keys")
    (base / "secret").write_text(SECRET)
    words = ["redact", str(base / "n" / "n.ipynb"), "--text-from", str(base / "secret"), "--yes"]
    return cli.main([*words, "--store", str(base / "store")])


if __name__ == "__main__":
    base = Path(sys.argv[1])
    if sys.argv[2] == "make":
        make(base)
        (base / "made").write_text("")
    sys.exit(redact(base))
