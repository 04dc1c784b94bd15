"""Power cuts and full disks, at every operation of a real session on a store."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from power_cut import Disk, build_shim, put_on_disk, read_notes
from store_world import Session

from kernel_runtime.engines.workspace.snapshots import reachable
from kernel_runtime.store.blobs import BlobStore
from kernel_runtime.store.database import open_store
from kernel_runtime.store.database_file import FILE_NAME
from kernel_runtime.store.digests import Digest
from kernel_runtime.store.keys import Keys
from kernel_runtime.store.namespaces import NamespaceStore

HERE = Path(__file__).resolve().parent
CUTS = int(os.environ.get("TT_POWER_CUTS", "120"))
FULLS = int(os.environ.get("TT_FULL_DISKS", "25"))
KILLS = int(os.environ.get("TT_KILLS", "8"))
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


@pytest.fixture(scope="module")
def shim(tmp_path_factory) -> Path:
    return build_shim(tmp_path_factory.mktemp("shim"))


def on_disk(
    shim: Path, where: Path, script: str, *arguments: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """A script of this folder, with the disk of ``disk.c`` below it."""
    done = subprocess.run(
        [sys.executable, str(HERE / script), str(where), *arguments],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
            "LD_PRELOAD": str(shim),
            "DISK_ROOT": str(where),
            **env,
        },
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def write_a_store(shim: Path, base: Path, rounds: int = 4, **env: str) -> str:
    base.mkdir(exist_ok=True)
    return on_disk(shim, base, "store_writer.py", str(rounds), **env).stdout


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
    moments = sorted(luck.choices(range(len(recorded)), k=CUTS))
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


def test_store_01_a_disk_that_is_full_from_any_operation_on(shim, base, tmp_path):
    """A checkpoint exists completely or not at all, the refusal is loud, and deleting works."""
    count = tmp_path / "count"
    write_a_store(shim, base / "0", rounds=3, DISK_COUNT=str(count))
    total = int(count.read_text())
    outcomes: Counter[str] = Counter()
    for n in sorted(random.Random(1).sample(range(1, total + 1), min(FULLS, total))):
        where = base / str(n)
        said = write_a_store(shim, where, rounds=3, DISK_FULL=str(n)) + told_in(where)
        made = {line.split()[1] for line in said.splitlines() if line.startswith("made")}
        deleting = {line.split()[1] for line in said.splitlines() if line.startswith("deleting")}
        assert "prune refused" not in said, (n, said)
        if (where / "store" / FILE_NAME).exists():
            found = read_all(where)
            assert made - deleting <= found.keys(), (n, said)
            # A commit that failed may have happened: then it is there, and whole.
            told = said.count("made") + said.count("automatic") - len(deleting)
            assert told <= len(found) <= told + said.count("refused"), (n, said)
        outcomes["refused"] += said.count("refused")
        outcomes["made"] += len(made)
        outcomes["deleted"] += len(deleting)
        shutil.rmtree(where)
    print(f"{FULLS} of {total} operations: {outcomes}")
    assert min(outcomes.values()) > 0


def test_a_session_that_is_killed_again_and_again(base):
    """By SIGKILL at any moment; each goes on where the one before was cut off."""
    luck = random.Random(KILLS)
    command = [sys.executable, str(HERE / "store_writer.py"), str(base), "40"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])])}
    kept = 0
    for _ in range(KILLS):
        wanted = told_in(base).count("\n") + luck.randint(1, 15)
        writer = subprocess.Popen(command, env=env)
        while told_in(base).count("\n") < wanted and writer.poll() is None:
            time.sleep(luck.random() * 0.01)
        writer.kill()
        writer.wait()
        said = [line.split() for line in told_in(base).splitlines()]
        made = {words[1] for words in said if words[0] == "made"}
        found = read_all(base)
        assert made - {words[1] for words in said if words[0] == "deleting"} <= found.keys()
        kept = len(found)
    with closing(Session(base)) as session:
        named = session.store.references("namespace")
        session.namespaces.sweep(lambda: named)
        assert set(session.namespaces.blobs()) >= session.namespaces.wanted(named)
    print(f"{KILLS} kills, {kept} checkpoints")


def told_in(base: Path) -> str:
    try:
        return (base / "told").read_text()
    except FileNotFoundError:
        return ""
