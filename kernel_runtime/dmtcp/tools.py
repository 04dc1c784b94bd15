"""Which DMTCP is installed, and what it can do.

The programs are told apart by what their ``--help`` lists, not by their version: distributions
carry changes from newer versions back. The version itself decides one thing only: below 3 DMTCP is
refused, since 2.x cannot checkpoint programs of today's glibc.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kernel_runtime.dmtcp.errors import DmtcpMissing, DmtcpTooOld

LEAST: Final = (3, 0)
"""The oldest version that is used."""

COORDINATOR: Final = "dmtcp_coordinator"
LAUNCH: Final = "dmtcp_launch"
RESTART: Final = "dmtcp_restart"
COMMAND: Final = "dmtcp_command"
PROGRAMS: Final = (COORDINATOR, LAUNCH, RESTART, COMMAND)

_ABILITIES: Final[Mapping[str, tuple[str, str]]] = {
    # name: the program whose help says so, and the word it has there
    "json": (COMMAND, "--json"),
    "blocking": (COMMAND, "--bcheckpoint"),
    "kill after checkpoint": (COMMAND, "--kcheckpoint"),
    "port file": (COORDINATOR, "--port-file"),
    "status file": (COORDINATOR, "--status-file"),
    "log file": (COORDINATOR, "--coord-logfile"),
    "coordinator tmpdir": (COORDINATOR, "--tmpdir"),
    "stale timeout": (COORDINATOR, "--stale-timeout"),
    "timeout": (COORDINATOR, "--timeout"),
    "join": (LAUNCH, "--join-coordinator"),
    "checkpoint signal": (LAUNCH, "--ckpt-signal"),
    "checkpoint open files": (LAUNCH, "--checkpoint-open-files"),
    "restart directory": (RESTART, "--restartdir"),
    "restart checkpoint directory": (RESTART, "--ckptdir"),
}
NEEDED: Final = ("blocking", "port file", "join")
"""Without these nothing here works; every DMTCP from 3.0 on has them."""

_VERSION: Final = re.compile(r"\(DMTCP\)\s+v?(\d+)\.(\d+)(?:\.(\d+))?")
_PATIENCE_S: Final = 20.0


@dataclass(frozen=True)
class Tools:
    """The programs of one installation. Make one with `find`."""

    coordinator: Path
    launch: Path
    restart: Path
    command: Path
    version: tuple[int, ...]
    abilities: frozenset[str]
    """Names out of those that this module's source lists."""

    @property
    def version_text(self) -> str:
        """``5.0``."""
        return ".".join(map(str, self.version))

    def can(self, ability: str) -> bool:
        """Whether this installation has an ability."""
        return ability in self.abilities


def find(path: str | None = None) -> Tools:
    """Look for DMTCP's programs (path: where, as in PATH) and ask each for its help.

    Takes some ten milliseconds. Raises DmtcpMissing, DmtcpTooOld.
    """
    found: dict[str, Path] = {}
    for name in PROGRAMS:
        where = shutil.which(name, path=path)
        if where is None:
            raise DmtcpMissing(name)
        found[name] = Path(where)
    version = _version(found[LAUNCH])
    if version < LEAST:
        raise DmtcpTooOld(found[LAUNCH], version)
    help_texts = {name: _ask(program, "--help") for name, program in found.items()}
    abilities = frozenset(
        ability for ability, (name, word) in _ABILITIES.items() if word in help_texts[name]
    )
    for ability in NEEDED:
        if ability not in abilities:
            name, word = _ABILITIES[ability]
            raise DmtcpMissing(str(found[name]), f"it has no {word}")
    return Tools(
        found[COORDINATOR],
        found[LAUNCH],
        found[RESTART],
        found[COMMAND],
        version,
        abilities,
    )


def _version(program: Path) -> tuple[int, ...]:
    text = _ask(program, "--version")
    match = _VERSION.search(text)
    if match is None:
        raise DmtcpMissing(str(program), f"it does not tell its version ({text[:60]!r})")
    return tuple(int(part) for part in match.groups() if part is not None)


def _ask(program: Path, option: str) -> str:
    try:
        # the exit status says nothing: some versions return 1 after --help
        done = subprocess.run(
            [program, option],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DmtcpMissing(str(program), str(error)) from error
    return done.stdout + done.stderr
