"""The commands on a store whose disk has not one byte left (store-01)."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import closing

import pytest
from store_world import Session

from jupyter_timetravel import cli
from kernel_runtime.store.digests import BlobStoreFull, digest_of
from kernel_runtime.store.keys import Keys
from kernel_runtime.store.namespaces import NamespaceStore

pytestmark = pytest.mark.root
MIB = 1 << 20


@pytest.fixture
def small(tmp_path, ability, monkeypatch):
    """A session whose store is on a disk of 60 MiB; keys are elsewhere."""
    where = tmp_path / "store"
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={60 * MIB},mode=700", "tmpfs", str(where)]
    ability("mount tmpfs", subprocess.run(command, check=False).returncode == 0)
    monkeypatch.setenv("JUPYTER_TIMETRAVEL_STORE", str(where))
    monkeypatch.setenv("JUPYTER_TIMETRAVEL_KEYS", str(tmp_path / "keys"))
    yield tmp_path
    subprocess.run(["umount", "-l", str(where)], check=True)


def fill(directory):
    """Leave nothing."""
    with open(directory / "filler", "wb") as file:
        for size in (MIB, 4096, 1):
            try:
                while True:
                    os.write(file.fileno(), b"x" * size)
            except OSError:
                pass


def test_a_namespace_that_does_not_fit_leaves_nothing(small):
    store = NamespaceStore(small / "store", Keys(small / "keys"))
    free = shutil.disk_usage(small / "store").free
    data = [os.urandom(4 * MIB) for _ in range(20)]
    told = r"4194304 bytes are needed, \d+ bytes are free"
    with pytest.raises(BlobStoreFull, match=told), store.writing():
        for piece in data:
            store.put(digest_of(piece), piece)
    assert free - shutil.disk_usage(small / "store").free < MIB
    assert list(store.blobs()) == []


def test_deleting_works_with_no_byte_free(small, capsys):
    with closing(Session(small)) as session:
        session.checkpoint(os.urandom(20 * MIB), comment="large", reason="cell")
        session.checkpoint(b"small" * 100, comment="kept")
        session.checkpoint(b"small" * 100, comment="head")
    fill(small / "store")
    assert shutil.disk_usage(small / "store").free == 0
    assert cli.main(["list", str(session.notebook)]) == 0
    assert cli.main(["prune", str(session.notebook), "--keep-last", "0"]) == 0
    assert shutil.disk_usage(small / "store").free > 20 * MIB
    assert cli.main(["check"]) == 0
    out, _ = capsys.readouterr()
    assert "2 checkpoints read: all is well" in out
    with closing(Session(small)) as session:
        session.checkpoint(b"again", comment="there is room again")
    fill(small / "store")
    assert cli.main(["prune", str(session.notebook), "--session"]) == 0
    assert cli.main(["sessions"]) == 0
    assert "no sessions" in capsys.readouterr().out
