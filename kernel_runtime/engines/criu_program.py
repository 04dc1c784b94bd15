"""CRIU as it is installed here, and one run of it inside a sandbox.

It runs inside, with all of root's rights, where cells may have replaced any file. So nothing of the
sandbox is executed or obeyed: the program, its loader and its libraries are opened outside and
handed in as descriptors, no configuration file is read, and no plugin is loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from kernel_runtime.later import dataclass
from kernel_runtime.sandbox.base import Sandbox

OLDEST: Final = (4, 0)
_PLACES: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FIRST_FD: Final = 10
_LOG: Final = "criu.log"
_TOLD: Final = 3
"""Lines of the log that an error message quotes."""


class CriuUnusable(Exception):
    """CRIU is not here, too old, or may not do its work; the text says what to do."""


class CriuFailed(Exception):
    """One run of CRIU ended with an error; the text has the first ones of its log."""


@dataclass(frozen=True)
class Program:
    """An installed CRIU: how it is started is known, so that nothing has to be looked up later."""

    path: str
    loader: str
    libraries: tuple[str, ...]
    """Directories."""
    version: tuple[int, int]

    @property
    def shown_version(self) -> str:
        return ".".join(map(str, self.version))


def find(name: str = "criu") -> Program:
    """The first CRIU of that name or path that is new enough. Raises CriuUnusable."""
    places = f"{os.environ.get('PATH', '')}:{_PLACES}".split(":")
    paths = [shutil.which(name, path=place) for place in dict.fromkeys(filter(None, places))]
    problems = []
    for path in dict.fromkeys(filter(None, paths)):
        try:
            return _examined(path)
        except CriuUnusable as error:
            problems.append(str(error))
    raise CriuUnusable(
        "; ".join(problems)
        or f"there is no program {name}; install CRIU {OLDEST[0]} or later (Debian 13 has it; "
        "scripts/get-criu of the source gets it on older ones)"
    )


def _examined(path: str) -> Program:
    try:
        told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
        found = re.search(r"Version: (\d+)\.(\d+)", told.stdout)
        if told.returncode or found is None:
            raise CriuUnusable(f"{path} --version does not work: {told.stderr.strip()}")
        version = (int(found[1]), int(found[2]))
        if version < OLDEST:
            raise CriuUnusable(f"{path} is {found[0][9:]}; CRIU {OLDEST[0]} or later is needed")
        loader, libraries, program = _how_started(path)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise CriuUnusable(f"{path} cannot be started: {error}") from error
    return Program(program, loader, libraries, version)


def may_run() -> None:
    """Whether this process has the rights that CRIU needs. Raises CriuUnusable."""
    if os.geteuid() != 0:
        raise CriuUnusable(
            "it needs root (or CAP_CHECKPOINT_RESTORE and CAP_SYS_PTRACE on the host, with which "
            "it was not tried)"
        )


def _how_started(path: str) -> tuple[str, tuple[str, ...], str]:
    """Loader, directories of libraries, program. Raises OSError, ValueError."""
    with open(path, "rb") as file:
        head = file.read(4096)
    if head.startswith(b"#!"):
        # what scripts/get-criu has made: exec LOADER --library-path DIRECTORY PROGRAM "$@"
        words = shlex.split(head.decode().strip().splitlines()[-1])
        if len(words) != 6 or words[0] != "exec" or words[2] != "--library-path":
            raise ValueError("it is a script that scripts/get-criu has not made; name the program")
        return words[1], tuple(words[3].split(":")), words[4]
    loader = _interpreter(head)
    listed = subprocess.run([loader, "--list", path], capture_output=True, text=True, timeout=20)
    places = re.findall(r"=> (/\S+)/[^/\s]+ \(", listed.stdout)
    return loader, tuple(sorted(set(places))), path


def _interpreter(head: bytes) -> str:
    """The loader that an ELF program names in its first page."""
    found = re.search(rb"/[\x21-\x7e]*/ld-linux[\x21-\x7e]*", head)
    if not head.startswith(b"\x7fELF") or found is None:
        raise ValueError("it is no program of glibc's")
    return found[0].decode()


class Run:
    """Runs CRIU inside a sandbox, beside its processes."""

    def __init__(self, program: Program, sandbox: Sandbox) -> None:
        self._program = program
        self._sandbox = sandbox

    async def __call__(
        self,
        arguments: list[str],
        images: Path,
        *,
        started: Callable[[int], None] = lambda pid: None,
        starting: asyncio.Lock | None = None,
        timeout: float,
        past_id: int = 0,
        nice: int = 0,
        inherited: Mapping[str, int] | None = None,
    ) -> None:
        """Run it to its end, with images as its directory.

        started: is told its pid, as seen inside; starting is held until then. timeout in seconds.
        past_id: it and what it starts get ids after that. inherited: descriptors that take the
        place of what CRIU knows by such names (``pipe:[123]``). Raises CriuFailed, SandboxError.
        """
        with contextlib.ExitStack() as stack:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="timetravel-")))
            (work / "plugins").mkdir()
            fds: list[int] = []

            def given(path: str | Path, flags: int) -> str:
                fd = os.open(path, flags | os.O_CLOEXEC)
                stack.callback(os.close, fd)
                fds.append(fd)
                return f"/proc/self/fd/{_FIRST_FD + len(fds) - 1}"

            directory = os.O_RDONLY | os.O_DIRECTORY
            argv = [given(self._program.loader, os.O_RDONLY), "--inhibit-cache", "--library-path"]
            argv.append(":".join(given(p, directory) for p in self._program.libraries))
            argv += [given(self._program.path, os.O_RDONLY), *arguments, "--no-default-config"]
            argv += ["--images-dir", given(images, directory), "--work-dir", given(work, directory)]
            argv += ["--libdir", given(work / "plugins", directory), "--log-file", _LOG, "-v1"]
            argv += ["--manage-cgroups=ignore"]
            for name, fd in (inherited or {}).items():
                fds.append(fd)
                argv += ["--inherit-fd", f"fd[{_FIRST_FD + len(fds) - 1}]:{name}"]
            null = os.open(os.devnull, os.O_RDWR)
            stack.callback(os.close, null)
            numbers = dict(enumerate(fds, _FIRST_FD))
            async with starting or contextlib.nullcontext():
                pid = await self._sandbox.spawn(
                    argv,
                    {"PATH": "/nonexistent"},  # no program of the sandbox's
                    "/",
                    {0: null, 1: null, 2: null, **numbers},
                    capabilities="all",
                    past_id=past_id,
                    nice=nice,
                )
                started(pid)
            try:
                status = await asyncio.wait_for(self._sandbox.wait_exit(pid), timeout)
            except asyncio.TimeoutError:
                await self._sandbox.signal(pid, 9, group=False)
                raise CriuFailed(f"CRIU did not end within {timeout:.0f} s") from None
            if status:
                code = os.waitstatus_to_exitcode(status)
                how = f"exit status {code}" if code >= 0 else f"signal {-code}"
                raise CriuFailed(f"CRIU ended with {how}{_why(work / _LOG)}")


def _why(log: Path) -> str:
    """The first errors of a log, without places in CRIU's source: the others follow from them."""
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").splitlines()
        errors = [re.sub(r"^.*?Error \([^)]*\): *", "", line) for line in lines if "Error" in line]
        # not to be allowed more descriptors is an error in its log, and none to us
        errors = [error for error in errors if not error.startswith("rlimit:")]
        if errors:
            return ": " + "; ".join(errors[:_TOLD])
    return ""
