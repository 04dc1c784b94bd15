"""Digests of what a program writes, taken while it writes."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernel_runtime.store.dumps import DumpStore
from kernel_runtime.store.following import PIECE, follow, pieces_of
from kernel_runtime.store.keys import Keys

WRITE = """
import os, sys
with open(sys.argv[1], "wb", buffering=0) as file:
    for n in range(int(sys.argv[2])):
        file.write(os.urandom(1 << 20))
        print(n, flush=True)
    sys.stdin.readline()
    file.write(b"the end")
"""


def test_what_was_hashed_meanwhile_is_what_is_there(tmp_path: Path) -> None:
    written = threading.Event()
    store = DumpStore(tmp_path, Keys(tmp_path / "keys"))
    with store.scratch() as files, ThreadPoolExecutor(1) as pool:
        path = files / "pages-1.img"
        (files / "other.img").write_bytes(bytes(PIECE * 8))
        following = pool.submit(follow, files, "pages-*.img", written)
        with subprocess.Popen(
            [sys.executable, "-c", WRITE, str(path), "50"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as program:
            assert program.stdout is not None
            for _ in range(50):
                program.stdout.readline()
            program.communicate(b"\n")
        written.set()
        known = following.result()
        whole = pieces_of_file(path)
        assert set(known) <= {"pages-1.img"}
        found = known.get("pages-1.img", [])
        assert len(found) % 4 == 0 and found == whole[: len(found)]
        ref = store.keep(files, {"some": "thing"}, known).ref
    store.verify(ref)
    assert store.open(ref).bytes == (50 << 20) + 7 + PIECE * 8


def pieces_of_file(path: Path) -> list[str]:
    with open(path, "rb") as file:
        return pieces_of(file.fileno(), 0, path.stat().st_size)
