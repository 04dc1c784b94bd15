"""A store of a real session with files, an environment and variables, and its export."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from kernel_runtime.store.database import open_store
from kernel_runtime.store.digests import digest_of
from kernel_runtime.store.keys import Keys
from kernel_runtime.store.namespaces import NamespaceStore
from kernel_runtime.timeline.model import Capture
from tests.conftest import ROOT, Manager, Notebook, open_up
from tests.exchange.conftest import call, end, write_notebook
from tests.waiting import PATIENCE


@dataclass
class World:
    """base/P/a.ipynb with checkpoints one and two, the store, the user's keys, and the export."""

    base: Path
    covered: bool
    namespace: str

    @property
    def notebook(self) -> Path:
        return self.base / "P" / "a.ipynb"

    @property
    def store(self) -> Path:
        return self.base / "store"

    @property
    def keys(self) -> str:
        return str(self.base / "keys")

    @property
    def file(self) -> Path:
        return self.base / "a.ttl"

    def members(self) -> list[tuple[tarfile.TarInfo, bytes]]:
        """What is in the export, as any tar reader sees it."""
        with tarfile.open(fileobj=io.BytesIO(plain(self.file))) as tar:
            return [
                (info, tar.extractfile(info).read() if info.isreg() else b"")  # type: ignore[union-attr]
                for info in tar
            ]


CELLS = (
    "import os; from pathlib import Path; E = Path({E!r}); x = 1",
    "open('f', 'w').write('one'); (E / 'env').write_text('one'); os.chmod('f', 0o6755)\n"
    "os.symlink('/mnt/data', 'data'); os.link('f', 'g'); (E / 'gone').unlink()\n"
    "os.symlink('/mnt/outside', E / 'link'); (E / 'suid').write_text('s')\n"
    "os.chmod(E / 'suid', 0o4755); (E / 'd').rename(E / 'd2') if 0 else None\n"
    "import shutil; shutil.rmtree(E / 'd'); (E / 'd').mkdir(); (E / 'd/new').write_text('new')",
    "%checkpoint --label one",
    "x = 2; open('f', 'w').write('two'); (E / 'env').write_text('two')",
    "%checkpoint --label two",
)


@contextlib.contextmanager
def made() -> Iterator[World]:
    """Make it; it lies below the home, which a session covers (/tmp is the host's own)."""
    base = Path(tempfile.mkdtemp(prefix="tt-exchange-", dir=Path.home()))
    E = base / "E"
    (E / "d").mkdir(parents=True)
    (E / "d" / "old").write_text("old")
    (E / "gone").write_text("here")
    runtime = base / "r"
    runtime.mkdir(mode=0o700)
    world = World(base, False, "")
    write_notebook(world.notebook, "x = 1", "y = 2")
    env = {
        **os.environ,
        "HOME": str(base),
        "JPY_SESSION_NAME": str(world.notebook),
        "JUPYTER_TIMETRAVEL_STORE": str(world.store),
        "JUPYTER_TIMETRAVEL_KEYS": world.keys,
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "IPYTHONDIR": str(base / "ipython"),
        "PYTHONPATH": str(ROOT),
    }
    manager = Manager()
    manager.start_kernel(cwd=str(world.notebook.parent), env=env)
    try:
        client = manager.blocking_client()
        client.start_channels()
        client.wait_for_ready(timeout=PATIENCE)
        kernel = Notebook(manager, client, world.notebook.parent)
        world.covered = bool(kernel.command("status")["environment"]["covered"])
        for cell in CELLS:
            kernel.run(cell.format(E=str(E)))
        end(kernel)
        world.namespace = add_namespace(world)
        call(
            "export", world.notebook, "-o", world.file,
            store=world.store, JUPYTER_TIMETRAVEL_KEYS=world.keys,
        )  # fmt: skip
        yield world
    finally:
        with contextlib.suppress(Exception):
            manager.shutdown_kernel(now=True)
        open_up(base)
        shutil.rmtree(base)


def add_namespace(world: World) -> str:
    """Give the checkpoint "two" a namespace whose loading would be seen."""
    import pickle

    stream = pickle.dumps({"x": Probe(str(world.base / "probe"))})
    namespaces = NamespaceStore(world.store, Keys(Path(world.keys)))
    with namespaces.writing():
        digest = digest_of(stream)
        namespaces.put(digest, stream)
        unit = {
            "id": 0, "names": ["x"], "kind": "variables", "needs": [], "buffers": [],
            "stream": [[digest, len(stream)]], "bytes": len(stream), "try": True,
        }  # fmt: skip
        ref = namespaces.save_manifest({"version": 1, "units": [unit], "lost": []})
        namespaces.flush()
        with contextlib.closing(open_store(world.store)) as store:
            (info,) = store.timelines()
            timeline = store.look_at(info.id)
            capture = Capture("namespace", "dill", "ready", len(stream), ref)
            store.save(timeline.state, [timeline.set_capture(timeline.resolve("two").id, capture)])
    return ref


class Probe:
    """Makes a file when it is loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def plain(file: Path) -> bytes:
    """The tar file inside an export."""
    with zstandard.ZstdDecompressor().stream_reader(file.read_bytes()) as reader:
        return reader.read()


def pack(target: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    """Write members as Python's tarfile does, uncompressed."""
    with tarfile.open(target, "w") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return target


def declared(members: list[tuple[tarfile.TarInfo, bytes]]) -> list[tuple[tarfile.TarInfo, bytes]]:
    """The same with a first member that declares what there is."""
    listing = json.loads(members[0][1])
    rest = [data for info, data in members[1:] if info.name != "signature.json"]
    listing["total"] = sum(map(len, rest))
    listing["members"] = len(rest)
    return [file("timetravel.json", json.dumps(listing).encode()), *members[1:]]


def file(name: str, data: bytes = b"evil", **more: Any) -> tuple[tarfile.TarInfo, bytes]:
    """One member."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in more.items():
        setattr(info, key, value)
    return info, data


def contents_of(store: Path) -> dict[str, Any]:
    """What a store holds, byte by byte, and the rows of its database."""
    import sqlite3

    found: dict[str, Any] = {}
    for part in ("blobs", "held", "pins", "namespaces/blobs", "environments", "tmp"):
        for path in sorted((store / part).rglob("*")):
            name = str(path.relative_to(store))
            found[name] = path.read_bytes() if path.is_file() and not path.is_symlink() else None
    with contextlib.closing(sqlite3.connect(store / "timelines.sqlite")) as db:
        for table in ("timelines", "checkpoints", "captures"):
            found[table] = db.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()
    return found
