"""Engine ``criu`` with child processes: the live executor and all below it, dumped by CRIU.

The executor waits between two cells with its link held still (kernel_runtime.executor.parking); all
processes of its tree stand still while ``criu dump --leave-running`` writes them, and go on. What
leads out of the tree (link, output pipes, the socket it waits on) is *external* to CRIU: a restore
hands it descriptors in their place, and the word ``woken`` is what the executor waits for then.

Keeps:  memory, threads and child processes, what connects them, open files with their offsets, ids.
Loses:  connections over TCP (they come back closed); processes that are not below the executor.
Needs:  CRIU 4, root, a pid namespace of our own, each file that is open or mapped as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kernel_runtime.engines.base import Frozen, Woken
from kernel_runtime.engines.criu_program import CriuFailed, CriuUnusable, Program, Run
from kernel_runtime.errors import CheckpointRefused, RestoreFailed, SandboxError
from kernel_runtime.later import dataclass
from kernel_runtime.sandbox.base import Sandbox
from kernel_runtime.store.dumps import DumpStore
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.image_model import ImageUnusable

LINK, OUT, ERR, CONTROL = OUTSIDE = ("link", "out", "err", "control")
"""What leads out of the tree, by name."""
WOKEN: Final = b"woken"
UNCHANGED: Final = b"go on"

_TREE: Final = "tree"
"""Key of a manifest's details: what this engine wrote, and no other may load."""
_DUMP_S: Final = 600.0
_RESTORE_S: Final = 60.0
_SLOWEST: Final = 20e6
"""Bytes a second, below which a restore is given up."""
_PAST_IDS: Final = 64
_GHOSTS: Final = str(1 << 30)
"""Bytes of one deleted file that is open, at most."""
_COVERED: Final = re.compile(r"overmounted mounts|lookup mount")
"""What CRIU says of a file that was opened in a mount that it cannot see: another one covers it, or
it is within the overlay that is below the layers where those lie below the host's directory."""
_RESTART: Final = (
    "CRIU cannot follow a file that was opened before the environment was mounted anew, nor one "
    "below the same top-level directory as the store. If children was set while the kernel ran, or "
    "a checkpoint without them was restored: restart the kernel, %restore this checkpoint and "
    "start them again. If Python and the store are both below /home, say: give the store another "
    "place (JUPYTER_TIMETRAVEL_STORE)"
)

Probe = Callable[[], Awaitable[Program]]


@dataclass(frozen=True)
class Tree:
    """What is dumped. Ids are those inside."""

    pid: int
    below: tuple[int, ...]
    stopped: tuple[int, ...]
    """Of those below, which were stopped for this, and must be told to go on."""
    outside: Mapping[str, int]
    """The inodes of what leads out of the tree; 0 for what is not there."""


class CriuTreeEngine:
    """Have CRIU dump a live tree of processes, and put it back; see the module's docstring."""

    def __init__(self, store: DumpStore, probe: Probe) -> None:
        """probe: finds CRIU, or raises CriuUnusable."""
        self._store = store
        self._probe = probe

    async def dump(self, tree: Tree, sandbox: Sandbox, files: Path) -> dict[str, Any]:
        """Write a tree to a directory; it runs on. Return what a restore must know.

        Raises CheckpointRefused; then it runs on, too.
        """
        try:
            program = await self._probe()
            ids = _ids(sandbox, (tree.pid, *tree.below))
            arguments = ["dump", "--leave-running", "--tree", str(tree.pid), *_SAME_FOR_BOTH]
            arguments += ["--ghost-limit", _GHOSTS]
            for name in (LINK, CONTROL):
                arguments += ["--external", f"unix[{tree.outside[name]}]"]
            await Run(program, sandbox)(arguments, files, timeout=_DUMP_S)
        except CriuUnusable as error:
            raise CheckpointRefused(f"CRIU cannot be used: {error}.") from error
        except (CriuFailed, SandboxError, OSError) as error:
            why = _RESTART if _COVERED.search(str(error)) else str(error).rstrip(".")
            raise CheckpointRefused(
                f"The child processes could not be captured: {why}. They run on, the session too, "
                "and the checkpoint holds all else."
            ) from error
        return {
            _TREE: True,
            "criu": program.shown_version,
            "pid": tree.pid,
            "highest_id": max(ids),
            "stopped": list(tree.stopped),
            "outside": dict(tree.outside),
        }

    async def wake(
        self, ref: str, sandbox: Sandbox, fds: Sequence[int]
    ) -> tuple[Woken, dict[str, Any]]:
        """Put a tree back, its executor with these descriptors: link, output, errors.

        Nothing else of the session may live inside, frozen processes excepted. Those below the
        executor that were running stand still until they are told to go on: ``stopped`` in the
        details, which are returned too. Raises RestoreFailed; then what has come up must be ended.
        """
        started = time.perf_counter()
        try:
            program = await self._probe()
            image = await asyncio.to_thread(self._store.open, ref)
        except CriuUnusable as error:
            raise RestoreFailed(str(ImageUnusable(ref, f"CRIU cannot be used: {error}"))) from error
        except StoreError as error:
            raise RestoreFailed(str(error)) from error
        details = image.details
        if not details.get(_TREE):
            raise RestoreFailed(str(ImageUnusable(ref, "it holds no child processes")))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours, theirs:
            inherited = {
                f"{'pipe' if name in (OUT, ERR) else 'socket'}:[{details['outside'][name]}]": fd
                for name, fd in zip(OUTSIDE, (*fds, theirs.fileno()))
            }
            try:
                await Run(program, sandbox)(
                    ["restore", "--restore-detached", *_SAME_FOR_BOTH],
                    image.files,
                    timeout=_RESTORE_S + image.bytes / _SLOWEST,
                    past_id=details["highest_id"] + _PAST_IDS,
                    inherited=inherited,
                )
                ours.send(WOKEN)
            except (CriuFailed, SandboxError, OSError) as error:
                raise RestoreFailed(str(ImageUnusable(ref, str(error)))) from error
        took_ms = (time.perf_counter() - started) * 1e3
        return Woken(details["pid"], took_ms, consumed=False), details


_SAME_FOR_BOTH: Final = ("--tcp-close", "--file-locks")


def _ids(sandbox: Sandbox, pids: Sequence[int]) -> list[int]:
    """The ids of all threads of processes."""
    found = list(pids)
    for pid in pids:
        with contextlib.suppress(OSError):  # it ended meanwhile
            found += map(int, os.listdir(f"{sandbox.proc(pid)}/task"))
    return found


class Waking:
    """A stored tree as `Executor.wake` takes an engine: woken once."""

    def __init__(self, engine: CriuTreeEngine, sandbox: Sandbox) -> None:
        self._engine = engine
        self._sandbox = sandbox
        self.stopped: list[int] = []
        """Known once it was woken: who must be told to go on."""

    async def wake(self, frozen: Frozen, fds: Sequence[int]) -> Woken:
        """frozen.address names the image. Raises RestoreFailed."""
        woken, details = await self._engine.wake(frozen.address, self._sandbox, fds)
        self.stopped = details["stopped"]
        return woken
