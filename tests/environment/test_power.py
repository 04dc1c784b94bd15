"""The power goes in the middle of a restore: environment and workspace are of one state."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from kernel_runtime.engines.overlay.directory import EnvironmentDirectory
from kernel_runtime.linux import boot_id
from tests.store.power_cut import Disk, File, Note, build_shim, put_on_disk, read_notes

CUTS = 40
"""Disks that are drawn for each operation."""


def test_a_restore_is_whole_after_a_power_cut(session: Any, tmp_path: Path) -> None:
    session.notebook.shut_down()
    disk, log = seeded(session.base), session.armed.with_name("notes")
    session.start(
        LD_PRELOAD=str(build_shim(session.armed.parent)),
        DISK_ROOT=str(session.base),
        DISK_LOG=str(log),
    )
    first, second = session.put("a"), session.put("b")
    for number in (first, second):
        session.wait_until_stored(number)
    session.check_swept()
    here = EnvironmentDirectory(session.environment)
    before = len(read_notes(log, session.base))
    old = here.read().stacks
    session.notebook.run(f"%restore {first}")
    new = here.read().stacks
    assert old != new
    notes = [note for note in read_notes(log, session.base) if counts(note)]
    assert [n for n in notes if n.b.endswith("/state.json")], "the shim saw nothing"

    luck, seen = random.Random("power"), set()
    begun = len([n for n in read_notes(log, session.base)[:before] if counts(n)])
    for done, note in enumerate(notes):
        disk.do(note)
        if done < begun:
            continue
        for draw in range(CUTS):
            where = tmp_path / f"{done}.{draw}"
            put_on_disk(after_the_cut(disk, luck), where)
            state = EnvironmentDirectory(where / here.path.relative_to(session.base)).read()
            followed = journal_says(where)
            if followed is None:  # no restore is under way: it was over, or had not begun
                followed = is_over(notes[begun : done + 1])
                state.end_cut_short(lambda: False)
            else:
                state.end_cut_short(lambda followed=followed: followed)
            # else that of before, or with what the safety checkpoint holds on top of it
            assert (state.stacks == new) == followed, (done - begun, note.op, note.a)
            seen.add(followed)
    assert seen == {True, False}


def after_the_cut(disk: Disk, luck: random.Random) -> dict[str, bytes | None]:
    """What is there when the machine has been started again."""
    found = disk.after_the_cut(luck, wild=True)
    now, then = boot_id().encode(), b"another boot"
    return {path: data and data.replace(now, then) for path, data in found.items()}


def counts(note: Note) -> bool:
    """Whether it is about the journal, the state, or their directories."""
    return note.op == "S" or any(
        path.startswith("store/journal") or "/state." in path or is_environment(path)
        for path in (note.a, note.b)
    )


def is_environment(path: str) -> bool:
    return os.path.dirname(path) == "store/environments"


def seeded(base: Path) -> Disk:
    """A disk with what is there: the directories, and the state."""
    disk = Disk()
    for parent, names, files in os.walk(base / "store"):
        inside = os.path.relpath(parent, base)
        found = {inside: None, **{f"{inside}/{name}": None for name in names}}
        for name in files:
            data = Path(parent, name).read_bytes() if name.startswith("state.") else b""
            found[f"{inside}/{name}"] = File(bytearray(data))
        disk.live.update(found)
        disk.safe.update(found)
        if inside.count("/") >= 2:
            names.clear()
    return disk


def journal_says(where: Path) -> bool | None:
    """Whether the workspace is the new one, by the rules of engines/workspace/journal.py."""
    found = [path.read_text() for path in (where / "store/journal").glob("restore-*.json")]
    return any('"committed"' in text for text in found) if found else None


def is_over(notes: list[Note]) -> bool:
    """Whether the workspace's journal has been written as committed, and that is safe."""
    writes = [n for n in notes if n.op == "w" and b'"committed"' in n.data]
    return bool(writes)
