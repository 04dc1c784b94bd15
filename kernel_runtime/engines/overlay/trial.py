"""Can this user overlay this machine's files? Tried for real, in a sandbox that is thrown away.

    python -m kernel_runtime.engines.overlay.trial STORE [WORKSPACE]      prints a Trial as JSON

The sandbox, the plan and the mounts are those of a kernel; a process inside then looks at what a
cell would find. Used by ``jupyter timetravel doctor``; ``explain`` words a kernel's refusal too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, Final

from kernel_runtime import linux
from kernel_runtime.engines.overlay import plan as planning
from kernel_runtime.engines.overlay.directory import EnvironmentDirectory
from kernel_runtime.engines.overlay.engine import OverlayEngine
from kernel_runtime.errors import TimeTravelError
from kernel_runtime.later import dataclass
from kernel_runtime.sandbox import refusals
from kernel_runtime.sandbox.modes import USER_MODE, USER_MODES, is_initial_user_namespace
from kernel_runtime.sandbox.namespaces import NamespaceSandbox
from kernel_runtime.sandbox.refusals import Refusal

PREFIX: Final = ".trial-"
"""Begins the names of environments that trials make; one that is left over can be deleted."""

_ANOTHER_STORE: Final = (
    "set JUPYTER_TIMETRAVEL_STORE (or Supervisor.store) to a directory on a local disk; in a "
    "container, on a volume (docker run -v timetravel:/timetravel -e "
    "JUPYTER_TIMETRAVEL_STORE=/timetravel)"
)
_OLDEST: Final = (5, 11)
_TRIAL_S: Final = 20.0


@dataclass
class Trial:
    """What came of it. refused: why there is no sandbox at all; problem: why nothing is covered."""

    mode: str = ""
    refused: str = ""
    mend: str = ""
    problem: str = ""
    covered: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    not_covered: dict[str, str] = field(default_factory=dict)
    inside: dict[str, Any] = field(default_factory=dict)

    @property
    def works(self) -> bool:
        """Whether anything is covered."""
        return bool(self.covered)


def explain(store: Path, reason: str) -> Refusal:
    """Why nothing could be overlaid. reason: the text of the error of the first mount."""
    reason = re.sub(r"^\[Errno \d+\] ", "", reason).rstrip(".")
    fstype = filesystem(store)
    if fstype == "overlay":
        cause = f"the store ({store}) is on overlayfs, which cannot carry another one's layers"
        return Refusal(cause, _ANOTHER_STORE)
    if planning.MountPoint("/", fstype).why_not:
        return Refusal(
            f"the store ({store}) is on {fstype}, which cannot carry layers", _ANOTHER_STORE
        )
    if os.path.realpath(store).startswith("/dev/"):
        return Refusal(
            f"the store ({store}) is in /dev, which cells do not share with it",
            _ANOTHER_STORE,
        )
    code = next((c for c in errno.errorcode if os.strerror(c) == reason), 0)
    if code == errno.ENODEV or not _knows_overlays():
        return Refusal(
            "this kernel has no overlayfs", "sudo modprobe overlay (in a container: on its host)"
        )
    if not _keeps_attributes(store):
        return Refusal(
            f"the store ({store}) is on {fstype}, which keeps no extended attributes here",
            _ANOTHER_STORE,
        )
    if code in (errno.EPERM, errno.EACCES):
        release = tuple(int(n) for n in os.uname().release.split("-")[0].split(".")[:2])
        if os.geteuid() != 0 and release < _OLDEST:
            return Refusal(
                "ordinary users may mount overlays from Linux 5.11 on",
                "use a newer kernel, or run the notebook's server as root of a container",
            )
        return refusals.explain("mounting an overlay", code)
    if code == errno.EINVAL and filesystem(Path("/")) == "overlay":
        return Refusal(
            "the files of this machine lie on overlays already, nested as deep as Linux allows",
            "run the kernel one container further out, or set Supervisor.environment=off",
        )
    return Refusal(
        f"mounting an overlay was refused ({reason}; the store is on {fstype})",
        "dmesg may say more; Supervisor.environment=off goes on without",
    )


def filesystem(path: Path) -> str:
    """The type of the filesystem that a path is or would be on."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
        mounts = planning.read_mounts(f.read())
    real = os.path.realpath(path)
    below = [m for m in mounts if real == m.path or real.startswith(m.path.rstrip("/") + "/")]
    # of those at one place the last one is on top
    return max(reversed(below), key=lambda m: len(m.path)).fstype if below else ""


def _knows_overlays() -> bool:
    try:
        return "\toverlay\n" in Path("/proc/filesystems").read_text()
    except OSError:
        return True


def _keeps_attributes(directory: Path) -> bool:
    name = "trusted.timetravel" if linux.has_capability(linux.CAP_SYS_ADMIN) else "user.timetravel"
    try:
        with tempfile.TemporaryDirectory(dir=_nearest(directory)) as folder:
            os.setxattr(folder, name, b"x")
    except OSError as error:
        return error.errno != errno.EOPNOTSUPP
    return True


def _nearest(path: Path) -> Path:
    while not path.is_dir():
        path = path.parent
    return path


async def attempt(store: Path, workspace: Sequence[str] = ()) -> Trial:
    """Start a sandbox over an environment of its own in the store, look, take it down."""
    trial = Trial()
    sandbox = NamespaceSandbox(lambda pid, status: None, lambda: None)
    path = store / "environments" / f"{PREFIX}{os.urandom(5).hex()}"
    directory = EnvironmentDirectory(path)
    made = not store.exists()
    there = contextlib.ExitStack()
    try:
        try:
            await sandbox.start()
        except TimeTravelError as error:
            trial.refused, _, mend = str(error).partition(". To mend it: ")
            trial.mend = mend.rstrip(".")
            return trial
        trial.mode = sandbox.mode
        place = there.enter_context(_place())
        await _mount(trial, sandbox, directory, workspace, place)
        if trial.works:
            trial.inside = await _look_inside(sandbox, place)
    finally:
        await sandbox.close()
        there.close()
        with contextlib.suppress(OSError):
            directory.remove()
        for empty in [path.parent, store] if made else []:
            with contextlib.suppress(OSError):
                empty.rmdir()
    return trial


@contextlib.contextmanager
def _place() -> Iterator[str]:
    """A directory of the host in the home directory: ``old`` to be renamed, ``work`` to be a
    workspace. "" where there can be none."""
    with contextlib.ExitStack() as stack:
        made = ""
        with contextlib.suppress(OSError):
            made = stack.enter_context(
                tempfile.TemporaryDirectory(
                    prefix=".timetravel-trial-", dir=os.path.expanduser("~")
                )
            )
            os.mkdir(f"{made}/old")
            os.mkdir(f"{made}/work")
        yield made


async def _mount(
    trial: Trial,
    sandbox: NamespaceSandbox,
    directory: EnvironmentDirectory,
    workspace: Sequence[str],
    place: str,
) -> None:
    work = os.path.realpath(f"{place}/work") if place else ""
    own = sandbox.mode in USER_MODES or not is_initial_user_namespace()
    host = planning.this_host(own_user_namespace=own, all_ids=sandbox.mode != USER_MODE)
    store = directory.path.parents[1]
    plan = planning.make_plan(
        host,
        workspace=[*(os.path.realpath(path) for path in workspace), *filter(None, [work])],
        hidden=[os.path.realpath(store)],
        blocked=[path for path in planning.DOCKER_SOCKETS if os.path.exists(path)],
        environment=os.path.realpath(directory.path),
        owned_copies=() if host.is_root else planning.copies_on_this_host(),
    )
    engine = OverlayEngine(directory, sandbox, plan)
    try:
        told = await engine.start()
    except (OSError, TimeTravelError) as error:
        told, reason = {}, str(error)
    else:
        reason = next(iter(told.values()), "there is nothing to cover")
    trial.covered = sorted(engine.state.uppers)
    trial.passed = [path for path in planning.HOST_PATHS if os.path.isdir(path)]
    trial.passed += [path for path in plan.passes if path != work]
    trial.hidden = [*plan.masked, *plan.blocked]
    trial.not_covered = told
    if not trial.covered:
        why = explain(store, reason)
        trial.problem, trial.mend = why.cause, why.mend


async def _look_inside(sandbox: NamespaceSandbox, place: str) -> dict[str, Any]:
    """Have a process look at what a cell would find."""
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as report, open(os.devnull) as null:
        try:
            pid = await sandbox.spawn(
                [sys.executable, "-I", "-S", "-c", _INSIDE, place, tempfile.gettempdir()],
                dict(os.environ),
                "/",
                {0: null.fileno(), 1: write_end, 2: null.fileno()},
            )
        finally:
            os.close(write_end)
        text = await asyncio.to_thread(report.read)
        await sandbox.wait_exit(pid)
    found: dict[str, Any] = json.loads(text) if text else {}
    return found


_INSIDE: Final = """
import json, os, socket, sys
place, tmp = sys.argv[1:]
found = {"uid": os.getuid(), "gid": os.getgid()}
with open("/proc/self/uid_map") as f: found["uid_map"] = [line.split() for line in f]
with open("/proc/self/status") as f:
    status = dict(line.rstrip("\\n").split(":\\t", 1) for line in f if ":\\t" in line)
found["capabilities"] = int(status["CapEff"], 16)
with open("/proc/self/mounts") as f:
    ours = [line.split()[3].split(",") for line in f if line.startswith("timetravel ")]
found["volatile"] = bool(ours) and all(
    any(option.endswith("volatile") for option in options) for options in ours
)
if place:
    try:
        os.rename(place + "/old", place + "/new"); found["rename"] = 0
    except OSError as error: found["rename"] = error.errno
    try:
        open(place + "/file", "w").close(); found["write"] = 0
    except OSError as error: found["write"] = error.errno
    found["replace"] = {}
    for top in (place, tmp):
        part = os.path.join(top, os.path.basename(place) + ".part")
        try:
            open(part, "x").close()
            try: os.replace(part, place + "/work/whole"); found["replace"][top] = 0
            except OSError as error: found["replace"][top] = error.errno; os.unlink(part)
        except OSError: pass  # nothing can be written there in the first place
def reach(path):
    s = socket.socket(socket.AF_UNIX)
    try: s.connect(path); return 0
    except OSError as error: return error.errno
    finally: s.close()
sockets = {"ssh agent": os.environ.get("SSH_AUTH_SOCK", "")}
bus = os.environ.get("DBUS_SESSION_BUS_ADDRESS", "")
if bus.startswith("unix:path="): sockets["session bus"] = bus[10:].partition(",")[0]
display = os.environ.get("DISPLAY", "").partition(":")[2].partition(".")[0]
if display: sockets["X display"] = "/tmp/.X11-unix/X" + display
if "WAYLAND_DISPLAY" in os.environ and "XDG_RUNTIME_DIR" in os.environ:
    sockets["Wayland"] = os.path.join(os.environ["XDG_RUNTIME_DIR"], os.environ["WAYLAND_DISPLAY"])
found["sockets"] = {name: reach(path) for name, path in sockets.items() if path}
found["docker"] = reach("/run/docker.sock")
print(json.dumps(found))
"""


def main(argv: Sequence[str]) -> int:
    """Print a trial as JSON."""
    # the sandbox's init becomes this process's child when its starter leaves
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    trial = asyncio.run(asyncio.wait_for(attempt(Path(argv[0]), argv[1:]), _TRIAL_S))
    print(json.dumps(asdict(trial)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
