"""A notebook that outlives its kernels, in a directory that is covered."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import psutil

from tests.waiting import PATIENCE, until


class Session:
    """One notebook with its store, in a directory that is covered: /tmp is the host's own."""

    def __init__(self, base: Path, start: Callable[..., Any], store: Path, armed: Path) -> None:
        self.base, self._start = base, start
        self.E, self.W = base / "E", base / "W"
        self.store = store
        for path in (self.E, self.W):
            path.mkdir()
        nbformat.write(nbformat.v4.new_notebook(), self.W / "t.ipynb")
        self.armed = armed  # where init sees the host's own
        self.mark = f"TT_TEST_MARK={base}"
        self.notebook: Any = None
        self._ids: dict[int, str] = {}

    def start(self, *arguments: str, **env: str) -> Any:
        """The next kernel on the notebook."""
        name, value = self.mark.split("=", 1)
        self.notebook = self._start(
            *arguments,
            cwd=self.W,
            env={
                "HOME": str(self.base),
                "JPY_SESSION_NAME": str(self.W / "t.ipynb"),
                "JUPYTER_TIMETRAVEL_STORE": str(self.store),
                "TIMETRAVEL_KILL_AT": str(self.armed),
                name: value,
                **env,
            },
        )
        self.notebook.run(f"import os; from pathlib import Path; E = Path({str(self.E)!r})")
        return self.notebook

    def covered(self) -> bool:
        """Whether E is."""
        roots = self.notebook.command("status")["environment"]["covered"]
        return any(str(self.E).startswith(root + "/") for root in roots)

    def state(self) -> str:
        """What the files say that `put` has written, each with the same text."""
        shown = self.notebook.run(SHOW).out
        return shown.splitlines()[-1]

    def put(self, what: str) -> int:
        """Make files with one text everywhere; return the number of the checkpoint."""
        self.notebook.run(put(what))
        head = self.notebook.head()
        self._ids[head["number"]] = head["id"]
        return int(head["number"])

    def kept(self) -> list[int]:
        """The numbers of those that `put` made and that are still there.

        One that was not stored yet when its kernel was killed is not; its number goes to another.
        """
        listed = self.notebook.command("list")["checkpoints"]
        return [c["number"] for c in listed if c["id"] == self._ids.get(c["number"])]

    def wait_until_gone(self) -> None:
        """The kernel was killed: nothing of it may stay."""
        until(lambda: not self.notebook.manager.is_alive() and not self.processes())
        # other runs mount things, too, at paths with any name
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        ours = {line for line in lines if line.partition(" - ")[2].split()[1] == "timetravel"}
        assert not ours | {line for line in lines if str(self.base) in line}

    def processes(self) -> list[psutil.Process]:
        """Those that bear this session's mark, and are no zombies."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                environ = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
                if self.mark.encode() in environ and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    @property
    def environments(self) -> list[Path]:
        return sorted((self.store / "environments").iterdir())

    @property
    def environment(self) -> Path:
        (only,) = self.environments
        return only

    def layers(self) -> set[str]:
        return set(os.listdir(self.environment / "layers"))

    def needed(self) -> set[str]:
        """The layers that checkpoints in the store or the mounts refer to."""
        found: set[str] = set()
        for path in self.environment.glob("state*.json"):  # a power cut may lead to the synced one
            state = json.loads(path.read_text())
            found |= {layer for stack in state["stacks"].values() for layer in stack}
            found |= {*state["uppers"].values(), state["root_layer"]}
        for capture in self.published():
            found |= {layer for stack in capture["stacks"].values() for layer in stack}
            found.add(capture["root_layer"])
        return (found - {""}) & self.layers()

    def published(self) -> list[dict[str, Any]]:
        """The details of the environment's captures in the store."""
        texts = [row[0] for row in asked(self.store, "SELECT details FROM captures")]
        return [details for text in texts if text and "stacks" in (details := json.loads(text))]

    def wait_until_stored(self, number: int) -> None:
        """Until the store knows a checkpoint: then its layers are on the disk."""
        wait_until_stored(self.store, number)

    def check_swept(self) -> None:
        """No half-made layers once the kernel has looked after them."""
        self.notebook.head()
        # something may be written at any moment, and has another name then
        until(lambda: self.layers() == self.needed(), "a layer that nobody needs")
        until(lambda: not self._others(), "a file that nobody needs")

    def _others(self) -> set[str]:
        """What no session leaves beside its layers, and in them."""
        known = {"state.json", "state.synced.json", "layers", "reserve"}
        known |= {"root", ".populated", "root.json"}
        found = set(os.listdir(self.environment)) - known
        for layer in self.layers():
            with contextlib.suppress(FileNotFoundError):  # it was collected meanwhile
                there = set(os.listdir(self.environment / "layers" / layer))
                found |= {f"{layer}/{name}" for name in there - {"files", "work", "index.json"}}
        return found


def asked(store: Path, question: str, *given: Any) -> list[Any]:
    """What the store's database answers."""
    with contextlib.closing(sqlite3.connect(store / "timelines.sqlite", timeout=PATIENCE)) as db:
        return db.execute(question, given).fetchall()


def wait_until_stored(store: Path, number: int) -> None:
    """Until a store knows a checkpoint, which is told it in the background."""
    question = "SELECT 1 FROM checkpoints WHERE number = ?"
    until(lambda: asked(store, question, number), f"#{number} is not in the store")


PUT = """
for n in range(3):
    (E / f"f{{n}}").write_text({what!r})
(E / "d").mkdir(exist_ok=True)
for old in (E / "d").iterdir(): old.unlink()
(E / "d" / {what!r}).write_text({what!r})
log = open(E / "log", "w"); log.write({what!r}); log.flush()
if os.getuid() == 0: Path("/tt_root").write_text({what!r})
Path("w").write_text({what!r})
"""
SHOW = """
found = {p.read_text() for p in [*E.glob("f*"), E / "log", *(E / "d").iterdir()] if p.exists()}
found |= {p.name for p in (E / "d").iterdir()}
if os.getuid() == 0: found.add(Path("/tt_root").read_text())
print(" ".join(sorted(found)))
"""


def put(what: str) -> str:
    """A cell that makes files with one text everywhere."""
    return PUT.format(what=what)
