"""The shared mappings of a process, asked for one by one and read as a text."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

from kernel_runtime import mappings
from tests.older_kernel import BEFORE_6_11

LOOK = f"""
import json, os, sys
from kernel_runtime import mappings
def look():
    return [[list(m[:2]) + [os.fsdecode(m.path)] for m in mappings.shared(sys.argv[1], writable=w)]
            for w in (False, True)]
before = look()
{BEFORE_6_11}
print(json.dumps([before, look()]))
"""


def test_the_same_whichever_way(tmp_path: Path) -> None:
    kept = []
    for name, access in (("writable", mmap.ACCESS_WRITE), ("read", mmap.ACCESS_READ)):
        (tmp_path / name).write_bytes(b"x" * 10_000)
        with open(tmp_path / name, "r+b") as file:
            kept.append(mmap.mmap(file.fileno(), 0, access=access))
            kept.append(mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE))
    kept.append(mmap.mmap(-1, 4096))
    inodes = {name: os.stat(tmp_path / name).st_ino for name in ("writable", "read")}
    (tmp_path / "writable").unlink()
    done = subprocess.run(
        [sys.executable, "-c", LOOK, f"/proc/{os.getpid()}"],
        check=True, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(mappings.__file__).parents[1])},
    )  # fmt: skip
    asked, read = json.loads(done.stdout)
    assert asked == read
    every, writable = ([one for one in told if str(tmp_path) in one[2]] for told in asked)
    device = os.stat(tmp_path).st_dev
    assert sorted(every, key=lambda one: str(one[2])) == [
        [device, inodes["read"], str(tmp_path / "read")],
        [device, inodes["writable"], f"{tmp_path / 'writable'} (deleted)"],
    ]
    assert [one[1] for one in writable] == [inodes["writable"]]
    assert any(one[2].startswith("/dev/zero") for one in asked[1])
    del kept
