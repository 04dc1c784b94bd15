"""Export and import: the same comes out, and cases security-01 and security-02."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import zstandard

from jupyter_timetravel import cli
from tests.conftest import open_up
from tests.exchange import world as worlds
from tests.exchange.conftest import call, write_notebook
from tests.exchange.world import World, contents_of, declared, file, pack

Command = Callable[..., str]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with worlds.made() as made:
        yield made


@pytest.fixture
def other(world: World) -> Iterator[Path]:
    """An empty directory below the home for another user's store and notebook."""
    path = world.base / "other"
    path.mkdir()
    yield path
    open_up(path)
    shutil.rmtree(path)


@pytest.fixture
def mine(world: World, other: Path) -> Command:
    """The command line of the user who has exported it, on another store."""

    def run(*words: Any, **more: Any) -> str:
        more.setdefault("store", other / "store")
        return call(*words, **{"JUPYTER_TIMETRAVEL_KEYS": world.keys, **more})

    return run


@pytest.fixture
def theirs(mine: Command, other: Path) -> Command:
    """The command line of somebody else."""

    def run(*words: Any, **more: Any) -> str:
        return mine(*words, JUPYTER_TIMETRAVEL_KEYS=str(other / "keys"), **more)

    return run


@pytest.fixture(scope="module")
def victim(world: World) -> tuple[Command, Path, dict[str, Any]]:
    """Somebody's store that holds a timeline already, and all that is in it."""
    store = world.base / "victim" / "store"
    store.parent.mkdir()

    def run(*words: Any, status: int = 0) -> str:
        """Without a child: what is refused is refused before anything depends on a process."""
        told = io.StringIO()
        keys = {"JUPYTER_TIMETRAVEL_KEYS": str(world.base / "victim/keys")}
        with (
            mock.patch.dict(os.environ, keys),
            contextlib.redirect_stdout(told),
            contextlib.redirect_stderr(told),
        ):
            assert cli.main([*map(str, words), "--store", str(store)]) == status
        return told.getvalue()

    run("import", world.file)
    return run, store, contents_of(store)


def sessions(command: Command) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(command("sessions", "--json"))["sessions"]
    return found


def comparable(listing: str) -> list[dict[str, Any]]:
    """Checkpoints without ids, which an import makes anew, and without what ended."""
    rows = json.loads(listing)["checkpoints"]
    numbers = {row["id"]: row["number"] for row in rows}
    for row in rows:
        del row["id"]
        row["parent"] = numbers.get(row["parent"])
        row["captures"] = [c for c in row["captures"] if c["kind"] != "process"]
    return rows


def test_the_same_comes_out(world: World, mine: Command, other: Path) -> None:
    path = other / "Q" / "b.ipynb"
    write_notebook(path, "mine")
    (path.parent / "own").write_text("own")
    assert "imported" in mine("import", world.file, "--as", path)
    assert comparable(mine("list", path, "--json")) == comparable(
        mine("list", world.notebook, "--json", store=world.store)
    )
    told = mine("restore", path, "one")
    assert "restored" in told
    Q = path.parent
    assert (Q / "f").read_text() == "one"
    assert os.readlink(Q / "data") == "/mnt/data"
    assert os.stat(Q / "f").st_ino == os.stat(Q / "g").st_ino
    assert os.stat(Q / "f").st_mode & 0o7777 == 0o755, "set-user-id bits are dropped"
    assert (world.notebook.parent / "f").read_text() == "two", "nothing of P was touched"
    mine("restore", path, "-1")
    assert {"a.ipynb", "b.ipynb"} <= set(os.listdir(Q)), "the notebook that was exported is a file"


def test_the_cells_come_along(world: World, mine: Command, other: Path) -> None:
    """Also those of checkpoints that are left out, as they lead to the one that is there."""
    mine("export", world.notebook, "two", "-o", other / "two.ttl", store=world.store)
    mine("import", other / "two.ttl")
    (session,) = sessions(mine)
    mine("export-notebook", session["id"], other / "clean.ipynb")
    mine("export-notebook", world.notebook, other / "original.ipynb", store=world.store)
    found, original = (
        [cell["source"] for cell in json.loads((other / f"{name}.ipynb").read_text())["cells"]]
        for name in ("clean", "original")
    )
    assert found == original
    assert any("x = 2" in "".join(source) for source in found)


def test_the_environment_comes_out(
    world: World, mine: Command, other: Path, start_notebook: Any, ability: Any
) -> None:
    ability("overlays", world.covered)
    path = other / "Q" / "b.ipynb"
    write_notebook(path)
    mine("import", world.file, "--as", path)
    E = world.base / "E"
    kernel = start_notebook(
        cwd=path.parent,
        env={
            "HOME": str(world.base),
            "JPY_SESSION_NAME": str(path),
            "JUPYTER_TIMETRAVEL_STORE": str(other / "store"),
            "JUPYTER_TIMETRAVEL_KEYS": world.keys,
        },
    )
    kernel.run(f"import os; from pathlib import Path; E = Path({str(E)!r})")
    show = "sorted((p.name, os.path.islink(p) or p.is_dir() or p.read_text()) for p in E.iterdir())"
    now = [("d", True), ("env", "two"), ("link", True), ("suid", "s")]
    assert kernel.run(show).result == repr(now)
    assert kernel.run("os.listdir(E / 'd')").result == "['new']", "what is below is hidden"
    assert kernel.run("oct((E / 'suid').stat().st_mode)").result == "'0o100755'"
    kernel.run("%restore one --only files")
    assert kernel.run("(E / 'env').read_text()").result == "'one'"
    assert (E / "env").exists() is False, "the host's own is as it was"
    assert sorted(os.listdir(E)) == ["d", "gone"]


def test_one_checkpoint(world: World, mine: Command, other: Path) -> None:
    target = other / "one.ttl"
    mine("export", world.notebook, "one", "--no-environment", "-o", target, store=world.store)
    mine("import", target)
    (row,) = sessions(mine)
    (checkpoint,) = json.loads(mine("list", row["id"], "--json"))["checkpoints"]
    assert checkpoint["label"] == "one"
    assert checkpoint["parent"] is None
    states = {c["engine"]: c["state"] for c in checkpoint["captures"]}
    assert states["workspace"] == "ready"
    assert states["fork"] == "evicted"
    assert states.get("overlay", "evicted") == "evicted"


def test_what_is_in_the_file_is_plain_tar_as_images_have_it(world: World, ability: Any) -> None:
    ability("overlays", world.covered)
    members = world.members()
    names = [info.name for info, _ in members]
    assert names[0] == "timetravel.json"
    assert names[-1] == "signature.json"
    assert any(name.endswith("/E/.wh.gone") for name in names)
    assert any(name.endswith("/E/d/.wh..wh..opq") for name in names)
    assert not any(info.ischr() or info.isblk() for info, _ in members)


def test_twice_and_beside_the_original(world: World, mine: Command) -> None:
    for _ in range(2):
        mine("import", world.file)
    assert len(sessions(mine)) == 2


# security-01: somebody else's timeline


def test_somebody_elses_is_not_restored_until_a_person_trusts_it(
    world: World, theirs: Command, other: Path
) -> None:
    path = other / "Q" / "b.ipynb"
    write_notebook(path)
    told = theirs("import", world.file, "--as", path)
    assert "not signed by you" in told
    assert f"{path} has it from then on; until then it goes by" in told
    (row,) = sessions(theirs)
    assert row["imported"] == "not trusted"
    id = row["id"][:12]
    assert "not trusted" in theirs("sessions")
    assert "[two]" in theirs("list", id)
    assert "namespace" in theirs("show", id, "two")
    assert json.loads(theirs("show", id, "two", "--json"))["variables"]["x"]
    theirs("diff", id, "one", "two")
    theirs("prune", "--older-than", "1m", "--dry-run")
    for words in (("restore", id, "one"), ("adopt", id, path), ("export", id, "-o", other / "x")):
        assert "not yours" in theirs(*words, status=1)
    assert "no session" in theirs("restore", path, "one", status=1)
    assert not (path.parent / "f").exists()
    assert "Nothing was done" in theirs("trust", id, status=4)
    told = theirs("trust", id, "--yes")
    assert "not yours" in told
    assert "runs code" in told
    theirs("restore", path, "one")
    assert (path.parent / "f").read_text() == "one"
    assert not (world.base / "probe").exists(), "nothing was unpickled"
    # what it names is signed by whoever trusted it
    from kernel_runtime.store.keys import Keys
    from kernel_runtime.store.namespaces import NamespaceStore

    rows = comparable(theirs("list", path, "--json"))
    kinds = [(r["label"], c["kind"], c["state"]) for r in rows for c in r["captures"]]
    assert ("two", "namespace", "ready") in kinds
    namespaces = NamespaceStore(other / "store", Keys(other / "keys"))
    trusted = [d for d in namespaces.blobs() if _is_ours(namespaces, d)]
    assert 0 < len(trusted) <= sum(kind[1:] == ("namespace", "ready") for kind in kinds)


def _is_ours(namespaces: Any, digest: str) -> bool:
    from kernel_runtime.store.errors import StoreError

    with contextlib.suppress(StoreError):
        return bool(namespaces.is_trusted(digest))
    return False


def test_a_byte_that_was_altered_in_an_own_file(world: World, mine: Command, other: Path) -> None:
    members = world.members()
    listing = json.loads(members[0][1])
    listing["checkpoints"][0]["comment"] = "altered"
    altered = [file("timetravel.json", json.dumps(listing).encode()), *members[1:]]
    bad = pack(other / "bad.ttl", altered)
    assert "altered after it was signed" in mine("import", bad, status=1)
    data = bytearray(world.file.read_bytes())
    data[len(data) // 2] ^= 1
    bad.write_bytes(data)
    mine("import", bad, status=1)
    bad.write_bytes(world.file.read_bytes()[:-100])
    mine("import", bad, status=1)


def test_what_a_sandbox_was_set_up_with_is_not_taken(
    world: World, theirs: Command, other: Path
) -> None:
    members = world.members()
    listing = json.loads(members[0][1])
    for row in listing["checkpoints"]:
        for capture in row["captures"]:
            capture["details"].update(privileged=True, binds=["/:/host"])
    bad = pack(
        other / "bad.ttl", [file("timetravel.json", json.dumps(listing).encode()), *members[1:]]
    )
    theirs("import", bad)
    assert b"privileged" not in (other / "store" / "timelines.sqlite").read_bytes()
    assert "privileged" not in str(contents_of(other / "store"))


# security-02: hostile archives

LAYER = "layers/evil"


def directory(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return file(name, b"", type=tarfile.DIRTYPE, mode=0o755)


def link(name: str, target: str, kind: bytes) -> tuple[tarfile.TarInfo, bytes]:
    return file(name, b"", type=kind, linkname=target)


HOSTILE: dict[str, list[tuple[tarfile.TarInfo, bytes]]] = {
    "parent": [file("../../.bashrc")],
    "parent in a layer": [directory(LAYER), file(f"{LAYER}/../../../x")],
    "absolute": [file("/tmp/tt_abs")],
    "unknown": [file("ws/x")],
    "through a link": [
        directory(LAYER),
        link(f"{LAYER}/l", "/tmp", tarfile.SYMTYPE),
        file(f"{LAYER}/l/tt_via_link"),
    ],
    "a layer that is a link": [link(LAYER, "/tmp", tarfile.SYMTYPE), file(f"{LAYER}/tt_via_link")],
    "hard link": [directory(LAYER), link(f"{LAYER}/h", "../../.ssh/id_rsa", tarfile.LNKTYPE)],
    "hard link, absolute": [directory(LAYER), link(f"{LAYER}/h", "/etc/passwd", tarfile.LNKTYPE)],
    "device": [
        directory(LAYER),
        file(f"{LAYER}/dev", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=1),
    ],
    "twice": [directory(LAYER), file(f"{LAYER}/a"), file(f"{LAYER}/a")],
    "twice, as deletion": [directory(LAYER), file(f"{LAYER}/a"), file(f"{LAYER}/.wh.a", b"")],
    "deletion of the parent": [directory(LAYER), file(f"{LAYER}/.wh...", b"")],
    "no parent": [file(f"{LAYER}/a")],
    "strange layer": [directory("layers/a:b")],
    "wrong hash": [file(f"blobs/{'0' * 64}")],
    "content that is a link": [link(f"blobs/{'0' * 64}", "/etc/passwd", tarfile.SYMTYPE)],
}


@pytest.mark.parametrize("name", [*HOSTILE, "all"])
def test_hostile_members(
    name: str, world: World, victim: tuple[Command, Path, dict[str, Any]], other: Path
) -> None:
    run, store, before = victim
    evil = [one for many in HOSTILE.values() for one in many] if name == "all" else HOSTILE[name]
    members = world.members()
    bad = pack(other / "bad.ttl", declared([*members[:-1], *evil, members[-1]]))
    told = run("import", bad, status=1)
    if name != "all":
        assert evil[-1][0].name.rstrip("/") in told or evil[0][0].name in told
    assert contents_of(store) == before
    assert not Path("/tmp/tt_abs").exists()
    assert not Path("/tmp/tt_via_link").exists()
    assert not list(other.glob("**/.bashrc"))


def test_suid_bits_are_dropped_and_links_are_content(
    world: World, theirs: Command, other: Path
) -> None:
    good = [
        directory(LAYER),
        file(f"{LAYER}/suid", mode=0o6755),
        link(f"{LAYER}/data", "/mnt/data", tarfile.SYMTYPE),
    ]
    members = world.members()
    listing = json.loads(members[0][1])
    details = {"stacks": {"/opt": ["evil"]}, "root_layer": ""}
    head = next(row for row in listing["checkpoints"] if row["id"] == listing["head"])
    head["captures"] = [
        {"kind": "filesystem", "engine": "overlay", "state": "ready", "bytes": 0, "ref": None,
         "error": None, "not_captured": [], "details": details}
    ]  # fmt: skip
    first = file("timetravel.json", json.dumps(listing).encode())
    theirs("import", pack(other / "g.ttl", declared([first, *members[1:-1], *good, members[-1]])))
    (layer,) = (other / "store").glob("environments/*/layers/evil/files")
    assert os.lstat(layer / "suid").st_mode & 0o7777 == 0o755
    assert os.readlink(layer / "data") == "/mnt/data"


@pytest.mark.parametrize("honest", [True, False])
def test_a_bomb(
    honest: bool, world: World, victim: tuple[Command, Path, dict[str, Any]], other: Path
) -> None:
    run, store, before = victim
    size = 4 << 30
    listing = json.loads(world.members()[0][1])
    listing["total"], listing["members"] = (size if honest else 1000), 1
    head, info = json.dumps(listing).encode(), tarfile.TarInfo(f"held/{'0' * 64}")
    info.size = size
    bomb = other / "bomb.ttl"
    with (
        open(bomb, "wb") as out,
        zstandard.ZstdCompressor(level=1).stream_writer(out) as packed,
        tarfile.open(fileobj=io.BytesIO(), mode="w"),
    ):
        first = file("timetravel.json", head)[0]
        packed.write(first.tobuf() + head + bytes(-len(head) % 512) + info.tobuf())
        for _ in range(64):
            packed.write(bytes(1 << 20))
    told = run("import", bomb, status=1)
    assert ("200 times" if honest else "more than it says") in told
    assert contents_of(store) == before


def test_what_it_lacks_is_found_before_anything_is_stored(
    world: World, victim: tuple[Command, Path, dict[str, Any]], other: Path
) -> None:
    run, store, before = victim
    members = world.members()
    for part in ("blobs/", "namespaces/", *(["layers/"] if world.covered else [])):
        gone = next(info.name for info, _ in members if info.name.startswith(part))
        left = [m for m in members if not (m[0].name + "/").startswith(gone + "/")]
        told = run("import", pack(other / "bad.ttl", declared(left)), status=1)
        assert "not in it" in told
    assert contents_of(store) == before


def test_an_import_that_is_killed_leaves_waste_only(
    world: World, mine: Command, other: Path
) -> None:
    import subprocess
    import sys

    from tests.conftest import ROOT

    mine("import", world.file)
    rows = [contents_of(other / "store")[t] for t in ("timelines", "checkpoints", "captures")]
    code = (
        "import os, sys; from jupyter_timetravel import cli; "
        "from kernel_runtime.store.database import Store; "
        "Store.insert = lambda *a: os.kill(os.getpid(), 9); cli.main(sys.argv[1:])"
    )
    env = {
        **os.environ, "PYTHONPATH": str(ROOT), "JUPYTER_TIMETRAVEL_STORE": str(other / "store"),
        "JUPYTER_TIMETRAVEL_KEYS": world.keys,
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code, "import", str(world.file)], env=env)
    assert done.returncode == -9
    now = contents_of(other / "store")
    assert [now[t] for t in ("timelines", "checkpoints", "captures")] == rows
    for path in [*(other / "store" / "tmp").iterdir(), *(other / "store/environments").iterdir()]:
        os.utime(path, (0, 0))
    assert "cut short" in mine("prune", "--older-than", "52w")
    assert not list((other / "store" / "tmp").glob("import-*"))
    assert len(list((other / "store" / "environments").iterdir())) == int(world.covered)


def test_an_export_replaces_earlier_exports_only(world: World, mine: Command, other: Path) -> None:
    words = ("export", world.notebook, "two", "-o")
    before = world.notebook.read_bytes()
    told = mine(*words, world.notebook, store=world.store, status=1)
    assert "is there already, and no earlier export" in told
    assert world.notebook.read_bytes() == before
    assert "is a directory" in mine(*words, other, store=world.store, status=1)
    missing = mine(*words, other / "nowhere/a.ttl", store=world.store, status=1)
    assert "There is no directory for" in missing
    (other / "empty.ttl").touch()
    for _ in range(2):
        assert "1 checkpoint" in mine(*words, other / "empty.ttl", store=world.store)
    assert "imported" in mine("import", other / "empty.ttl")
