"""Full disks, stores that cannot carry layers, layers that are gone, power that failed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from session_world import Session

from kernel_runtime.engines.overlay.removal import remove_tree
from tests.exhaustive import more

MIB = 1 << 20


@pytest.fixture
def mount(base: Path, ability: Callable[[str, bool], None]) -> Iterator[Callable[..., Path]]:
    """Mount something on the store's directory, as root."""
    ability("root", os.geteuid() == 0)
    mounted: list[Path] = []

    def make(*arguments: str) -> Path:
        store = base / "store"
        store.mkdir(mode=0o700)
        done = subprocess.run(["mount", *arguments, str(store)], check=False, capture_output=True)
        ability(f"mount {' '.join(arguments)}", done.returncode == 0)
        mounted.append(store)
        return store

    yield make
    for store in mounted:
        subprocess.run(["umount", "-l", str(store)], check=True)


@pytest.fixture
def begin(base: Path, tmp_path: Path, start_notebook: Callable[..., Any]) -> Callable[..., Session]:
    """A notebook on a store of the test's choice; its kernel is not started."""

    def make(store: Path) -> Session:
        return Session(base, start_notebook, store, tmp_path / "kill-at")

    return make


def numbers(session: Session) -> list[int]:
    return [c["number"] for c in session.notebook.command("list")["checkpoints"]]


FULL = """
open(E / "pad", "wb").write(bytes(30 << 20))
try: open(E / "big", "r+b"); print("opened")
except OSError as e: print("open", e.errno)
try: os.chmod(E / "big", 0o600)
except OSError as e: print("chmod", e.errno)
os.unlink(E / "big"); print("deleted")
"""
FILL = """
f = open(E / "zeros", "wb", buffering=0)
try:
    while True: f.write(bytes(4096))
except OSError as e: print(e.errno)
"""


def test_filesystem_08_the_disk_fills_up_in_a_copy_up(mount, begin):
    session = begin(mount("-t", "tmpfs", "-o", "size=64m,mode=700", "tmpfs"))
    with open(session.E / "big", "wb") as f:
        f.write(bytes(50 * MIB))
    notebook = session.start()
    assert session.covered()
    notebook.run('%checkpoint "good"')
    good = notebook.head()["number"]
    assert notebook.run(FULL).out.splitlines() == ["open 28", "chmod 28", "deleted"]
    notebook.run('x = 1\n%checkpoint "while full"', ok=False)
    notebook.run(f"%restore {good}")
    shown = notebook.run('print(os.path.getsize(E / "big"), os.path.exists(E / "pad"))').out
    assert shown == "52428800 False"
    assert notebook.run("print(1)").out == "1"


@pytest.mark.timeout(240)
def test_not_a_byte_is_left_on_the_disk(mount, begin):
    """Captures succeed or fail loudly, a restore needs no room, afterwards all is as it was."""
    session = begin(mount("-t", "tmpfs", "-o", "size=48m,mode=700", "tmpfs"))
    notebook = session.start()
    first = session.put("one")
    assert notebook.run(FILL).out == "28"
    before = numbers(session)
    for turn in range(3):
        notebook.run(f"y = {turn}; f.close()\n" + FILL)
    notebook.run(f"%restore {first}")
    assert session.state() == "one"
    assert notebook.run('print((E / "zeros").exists())').out == "False"
    second = session.put("two")
    notebook.run(f"%restore {first}")
    notebook.run(f"%restore {second}")
    assert session.state() == "two"
    assert set(before) <= set(numbers(session))
    notebook.manager.shutdown_kernel()
    session.start()
    assert session.state() == "two"
    session.notebook.run(f"%restore {first} --only files")
    assert session.state() == "one"


def test_the_store_is_read_only(mount, begin):
    session = begin(mount("-t", "tmpfs", "-o", "size=8m,ro", "tmpfs"))
    notebook = session.start()
    assert not session.covered()
    status = notebook.command("status")
    assert "outside of the workspace" in status["environment"]["problem"]
    assert notebook.run("1 + 1").result == "2"


def test_the_store_is_on_overlayfs(mount, begin, base):
    for name in ("l", "u", "k"):
        (base / name).mkdir()
    options = f"lowerdir={base}/l,upperdir={base}/u,workdir={base}/k"
    session = begin(mount("-t", "overlay", "-o", options, "overlay"))
    notebook = session.start()
    assert not session.covered()
    problem = notebook.command("status")["environment"]["problem"]
    assert "overlayfs" in problem and "Supervisor.store" in problem
    notebook.cells("x = 1", "x = 2", "%restore 2")
    assert notebook.run("x").result == "1"


def test_the_store_keeps_no_attributes(mount, begin):
    session = begin(mount("-t", "ramfs", "ramfs"))
    notebook = session.start()
    problem = notebook.command("status")["environment"]["problem"]
    assert session.covered() or "ramfs" in problem
    assert notebook.run("1 + 1").result == "2"


def test_a_store_on_a_mount_of_its_own_is_not_seen_inside(mount, begin):
    session = begin(mount("-t", "tmpfs", "-o", "size=64m,mode=700", "tmpfs"))
    notebook = session.start()
    shown = notebook.run(f"print([*os.walk({str(session.store)!r})])").out
    assert "timelines" not in shown and "layers" not in shown


def test_a_layer_was_deleted_by_hand(session):
    notebook = session.notebook
    first = session.put("one")
    record = next(c for c in notebook.command("list")["checkpoints"] if c["number"] == first)
    session.wait_until_stored(session.put("two"))  # nothing is being written to a layer
    assert record["number"] == first
    layers = json.loads((session.environment / "state.json").read_text())["stacks"]
    stack = next(stack for root, stack in layers.items() if str(session.E).startswith(root + "/"))
    needed = next(layer for layer in reversed(stack))
    os.rename(session.environment / "layers" / needed, session.base / "taken")
    refused = notebook.refused("restore", checkpoint=first)
    assert refused["ename"] == "RestoreRefused" and needed in refused["evalue"]
    assert "Nothing was changed" in refused["evalue"]
    assert notebook.run("Path('w').read_text()").result == "'two'"
    notebook.command("restore", checkpoint=first, only="process")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"version": 1, "stacks": {"/x": [1]}}',
        '{"version": 1, "uppers": {"/usr": "../../x"}}',
        '{"version": 99}',
        *more("", "[]", "3", '{"version": 1, "stacks": []}'),
    ],
)
def test_a_damaged_state(session, text):
    number = session.put("one")
    session.notebook.manager.shutdown_kernel()
    layers = session.layers()
    (session.environment / "state.json").write_text(text)
    notebook = session.start()
    assert not session.covered()
    assert "state.json" in (problem := notebook.command("status")["environment"]["problem"]) or (
        "another version" in problem
    )
    assert notebook.run("1 + 1").result == "2"
    notebook.manager.shutdown_kernel()
    assert session.layers() == layers
    assert number


def lose_power(session: Session) -> None:
    """As if the machine had gone down while the kernel ran."""
    path = session.environment / "state.json"
    state = json.loads(path.read_text())
    assert state["running"]
    path.write_text(json.dumps({**state, "boot": "another"}))


def test_the_power_fails(session):
    """What is published is on the disk, what was written since is put aside, and that is told."""
    number = session.put("one")
    session.wait_until_stored(number)
    session.check_swept()
    session.notebook.run("%timetravel config auto=off")
    session.notebook.run("(E / 'new').write_text('new')")
    session.notebook.manager.provisioner.process.kill()
    session.wait_until_gone()
    lose_power(session)
    notebook = session.start()
    assert session.state() == "one"
    assert notebook.run("(E / 'new').exists()").result == "False"
    told = notebook.command("status")["environment"]["not_covered"]
    (text,) = [t for root, t in told.items() if str(session.E).startswith(root + "/")]
    assert "put aside" in text
    aside = [name for name in session.layers() if name.endswith(".unsynced")]
    assert any((session.environment / "layers" / name).is_dir() for name in aside)
    assert any(name in text for name in (a.removesuffix(".unsynced") for a in aside))
    notebook.run(f"%restore {number} --only files")
    assert session.state() == "one"


def test_the_power_fails_in_the_second_session(session):
    """What the first session has left is on the disk since its end."""
    number = session.put("one")
    session.notebook.run("%timetravel config auto=off")
    session.put("two")  # stays in the upper
    session.notebook.manager.shutdown_kernel()
    session.start()
    assert session.state() == "two"
    third = session.put("three")
    session.wait_until_stored(third)
    session.check_swept()
    session.notebook.run("%timetravel config auto=off")
    session.notebook.manager.provisioner.process.kill()
    session.wait_until_gone()
    lose_power(session)
    session.start()
    assert session.state() == "three"
    for wanted, text in ((number, "one"), (third, "three")):
        session.notebook.run(f"%restore {wanted} --only files")
        assert session.state() == text


def test_the_environment_is_deleted_by_hand(session):
    number = session.put("one")
    session.notebook.manager.shutdown_kernel()
    remove_tree(session.environment)
    notebook = session.start()
    assert session.covered()
    refused = notebook.refused("restore", checkpoint=number, only="files")
    assert "gone" in refused["evalue"] and "Nothing was changed" in refused["evalue"]


@pytest.mark.timeout(240)
def test_the_disk_is_filled_again_and_again(mount, begin):
    """When what is held back is used up at last, a restore is refused and the kernel lives."""
    store = mount("-t", "tmpfs", "-o", "size=48m,mode=700", "tmpfs")
    session = begin(store)
    notebook = session.start()
    first = session.put("one")
    session.check_swept()
    (store / "ours").write_bytes(bytes(20 * MIB))
    for turn in range(7):
        assert notebook.run(f"y = {turn}\n{FILL}").out == "28"
        with open(store / "more", "ab", buffering=0) as f:
            try:
                while True:
                    f.write(bytes(4096))
            except OSError:
                pass
        cell = notebook.run(f"%restore {first}", ok=turn < 2)
        if cell.status == "ok":
            assert session.state() == "one"
        else:
            assert "RestoreRefused" in cell.error and "No room" in cell.error
            assert notebook.run("y").result == str(turn)
    for name in ("ours", "more"):
        os.unlink(store / name)
    second = session.put("two")
    notebook.run(f"%restore {first}")
    assert session.state() == "one"
    notebook.run(f"%restore {second}")
    notebook.manager.shutdown_kernel()
    session.start()
    assert session.state() == "two"
    session.notebook.run(f"%restore {first} --only files")
    assert session.state() == "one"
