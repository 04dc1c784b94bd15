"""Power cuts and full disks, at every operation of a real session on a store."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from power import Disk, put_on_disk, read_notes

from kernel_runtime.engines.workspace.snapshots import reachable
from kernel_runtime.store.blobs import BlobStore
from kernel_runtime.store.database import open_store
from kernel_runtime.store.digests import Digest
from kernel_runtime.store.keys import Keys
from kernel_runtime.store.namespaces import NamespaceStore

CUTS = int(os.environ.get("TT_POWER_CUTS", "120"))
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


@pytest.fixture(scope="module")
def shim(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("shim") / "disk.so"
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        pytest.skip("missing ability: a C compiler")
    flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra"]
    subprocess.run([compiler, *flags, "-o", made, HERE / "disk.c", "-ldl", "-pthread"], check=True)
    return made


def write_a_store(shim: Path, base: Path, rounds: int = 4, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, str(HERE / "writer.py"), str(base), str(rounds)],
        env={**os.environ, "LD_PRELOAD": str(shim), "DISK_ROOT": str(base), **env},
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stderr or "ENOSPC" in env, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def recorded(shim, tmp_path_factory):
    """The notes of one run."""
    base = tmp_path_factory.mktemp("recorded")
    log = tmp_path_factory.mktemp("log") / "notes"
    write_a_store(shim, base, DISK_LOG=str(log))
    return read_notes(log, base)


@pytest.fixture
def base() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="tt-power-", dir=MEMORY))
    yield made
    shutil.rmtree(made)


def read_all(base: Path) -> dict[str, str]:
    """Open the store and read every byte of every checkpoint: ids and comments that are there."""
    keys = Keys(base / "keys")
    with closing(open_store(base / "store", keys)) as store:
        assert store.problems() == []
        blobs, namespaces = BlobStore(store.directory), NamespaceStore(store.directory, keys)
        found = {}
        for info in store.timelines():
            for checkpoint in store.look_at(info.id):
                found[checkpoint.id] = checkpoint.reason
                files, unread = reachable(blobs, [checkpoint.capture("filesystem").ref])
                assert unread == []
                for digest in files:
                    blobs.get(Digest(digest))
                manifest = checkpoint.capture("namespace").ref
                namespaces.manifest(manifest)
                for digest in namespaces.needs(manifest):
                    namespaces.get(digest)
                store.authenticate(info.id, checkpoint)
        return found


@pytest.mark.parametrize("kind", ["ordered", "wild"])
def test_store_02_a_power_cut_anywhere(recorded, base, kind):
    """Whatever was told to be saved is there, whole; so is all else that is listed."""
    luck = random.Random(f"{kind} {CUTS}")
    moments = sorted(luck.sample(range(len(recorded)), min(CUTS, len(recorded))))
    disk, done, outcomes = Disk(), 0, Counter()
    for moment in [*moments, len(recorded)]:
        for note in recorded[done:moment]:
            disk.do(note)
        done = moment
        where = base / "after"
        put_on_disk(disk.after_the_cut(luck, wild=kind == "wild"), where)
        told = told_before(recorded[:moment])
        made = {id for verb, id in told if verb == "made"}
        deleting = {id for verb, id in told if verb == "deleting"}
        if (where / "store").exists() or made:
            found = read_all(where)
            assert made - deleting <= found.keys(), moment
            outcomes["kept"] += len(made - deleting)
        shutil.rmtree(where)
    print(f"{kind}: {len(moments) + 1} cuts in {len(recorded)} operations, {outcomes}")
    assert outcomes["kept"] > 100


def told_before(notes) -> list[tuple[str, str]]:
    text = b"".join(note.data for note in notes if note.op == "w" and note.a == "told").decode()
    return [tuple(line.split()) for line in text.splitlines() if " " in line]
