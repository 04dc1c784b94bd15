"""Locks between the kernel and its children hold across checkpoints, in the environment too."""

from __future__ import annotations

import sys
from typing import Any

CHILD = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1] + "/c.db", timeout=50, isolation_level=None)
while True:
    db.execute("begin immediate")
    db.execute("insert into t(b) values(hex(randomblob(300)))")
    time.sleep(.001)
    db.execute("commit")
    time.sleep(.004)
"""


def test_a_database_that_a_child_writes_too(notebook: Any) -> None:
    notebook.run(
        f"import sqlite3, subprocess, time, os; H = os.path.expanduser('~'); CHILD = {CHILD!r}\n"
        "db = sqlite3.connect(H + '/c.db', timeout=50, isolation_level=None)\n"
        "db.execute('create table t(a integer primary key, b text)')\n"
        "db.execute('create index i on t(b)')\n"
        f"c = subprocess.Popen([{sys.executable!r}, '-c', CHILD, H])\n"
        "while not db.execute('select count(*) from t').fetchone()[0]: time.sleep(.01)"
    )
    notebook.run("mine = 0")
    for _ in range(3):
        notebook.run(
            "for i in range(20):\n"
            "    db.execute('insert into t(b) values(hex(randomblob(300)))'); mine += 1"
        )
    out = notebook.run(
        "c.kill(); c.wait()\n"
        "print(mine, *db.execute('pragma integrity_check').fetchone(), "
        "db.execute('select count(*) from t').fetchone()[0] > 60)"
    ).out
    assert out.split() == ["60", "ok", "True"]
