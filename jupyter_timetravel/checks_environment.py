"""What the covering of the environment asks of a machine: rows of jupyter_timetravel.checks.

All rows but the last are read off one trial, in which a sandbox is set up as a kernel does it, with
the store's own filesystem carrying the layers (kernel_runtime.engines.overlay.trial).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from jupyter_timetravel.findings import FINE, LIMITED, SKIPPED, Check, Finding, is_linux

_TRIAL_S = 60
_SHOWN = 12
_LITTLE_ROOM = 2 * 10**9
_WANTED = {0: "CHOWN", 1: "DAC_OVERRIDE", 3: "FOWNER", 6: "SETGID", 7: "SETUID", 18: "SYS_CHROOT"}


class TrialBroken(Exception):
    """The trial itself did not work."""


@cache
def trial() -> dict[str, Any]:
    """One trial for all rows. Raises TrialBroken."""
    from kernel_runtime.store.paths import store_directory  # of no use on other systems

    command = [sys.executable, "-m", "kernel_runtime.engines.overlay.trial"]
    try:
        done = subprocess.run(
            [*command, str(store_directory())],
            capture_output=True, text=True, timeout=_TRIAL_S, check=False,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(done.stdout)
        return found
    except subprocess.TimeoutExpired:
        raise TrialBroken(f"no answer within {_TRIAL_S} s") from None
    except (OSError, ValueError) as error:
        words = done.stderr.strip().splitlines() if isinstance(error, ValueError) else []
        raise TrialBroken(words[-1] if words else str(error)) from error


def on_trial(judge: Callable[[dict[str, Any]], Finding]) -> Callable[[], Finding]:
    """A check that needs overlays; skipped where there are none, with the line to look at."""

    def run() -> Finding:
        if not is_linux():
            return Finding(SKIPPED, "for Linux only")
        found = trial()
        if not found["covered"]:
            return Finding(SKIPPED, "see overlays")
        return judge(found)

    return run


def check_overlays() -> Finding:
    if not is_linux():
        return Finding(SKIPPED, "for Linux only")
    found = trial()
    without = "Files outside of the workspace are not rolled back; memory and the workspace are."
    if why := found["refused"] or found["problem"]:
        from kernel_runtime.sandbox import refusals

        offer = refusals.instead(sys.prefix)
        text = f"{why}. {without}" + (f" {offer}" if offer else "")
        return Finding(LIMITED, text, mended(found["mend"]))
    how = {"namespaces": "as root", "root-user-namespaces": "as root in a user namespace"}
    return Finding(FINE, how.get(found["mode"], "as this user, in a user namespace"))


def mended(text: str) -> str:
    """The mend in full: where a profile is told of, the commands that install it."""
    from kernel_runtime.sandbox import refusals

    if refusals.PROFILE not in text:
        return text
    profile = refusals.apparmor_profile()
    return (
        f"sudo tee {refusals.PROFILE} <<'END'\n{profile}END\n"
        f"sudo apparmor_parser -r {refusals.PROFILE}"
    ).replace("\n", "\n    ")


def judge_covered(found: dict[str, Any]) -> Finding:
    passed = ", ".join(found["passed"])
    text = f"{listed(found['covered'])}; the host's own inside too: {passed}"
    if found["hidden"]:
        text += f"; hidden: {', '.join(found['hidden'])}"
    left = found["not_covered"]
    if not left:
        return Finding(FINE, text)
    told = "; ".join(f"{path}: {why}" for path, why in sorted(left.items())[:_SHOWN])
    return Finding(
        LIMITED,
        f"{text}. Not covered: {told}",
        "Nothing, if no cell writes there; what lies on another disk can be mounted elsewhere.",
    )


def listed(paths: list[str]) -> str:
    more = len(paths) - _SHOWN
    return ", ".join(paths[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def judge_volatile(found: dict[str, Any]) -> Finding:
    if found["inside"].get("volatile"):
        return Finding(FINE, "fsync in a cell does not wait for the disk")
    return Finding(
        LIMITED,
        "not known here: each fsync of a package manager waits for the disk.",
        "Use Linux 5.10 or later.",
    )


def judge_renames(found: dict[str, Any]) -> Finding:
    code = found["inside"].get("rename")
    if code is None:
        return Finding(SKIPPED, "the home directory cannot be written")
    text = (
        "directories of the host can be renamed"
        if code == 0
        else f"os.rename of a directory that the host has fails ({os.strerror(code)}), as between "
        "two disks: mv and shutil.move copy it instead"
    )
    return Finding(FINE, text + _into_workspace(found["inside"].get("replace", {})))


def _into_workspace(tried: dict[str, int]) -> str:
    """tried: what os.replace of a file into a workspace gave, by where the file was."""
    failed = {place: code for place, code in tried.items() if code}
    if not failed:
        return ""
    home = os.path.expanduser("~")
    places = [home if place.startswith(home) else place for place in failed]
    return (
        f". os.replace or os.rename of a file from {' or '.join(places)} into the workspace, or "
        f"out of it, fails too ({os.strerror(next(iter(failed.values())))}), also where it is one "
        "disk: write temporary files beside their target, or use shutil.move"
    )


def judge_sockets(found: dict[str, Any]) -> Finding:
    reached: dict[str, int] = found["inside"].get("sockets", {})
    if not reached:
        return Finding(FINE, "none named here; the host's own /run and /tmp are seen inside")
    lost = {name: os.strerror(code) for name, code in reached.items() if code}
    if not lost:
        return Finding(FINE, f"reached from inside: {', '.join(reached)}")
    told = ", ".join(f"{name} ({why})" for name, why in lost.items())
    return Finding(
        LIMITED,
        f"not reached from inside: {told}.",
        "See that the socket exists outside; a path in a covered directory belongs into "
        "Supervisor.host_paths.",
    )


def judge_docker(found: dict[str, Any]) -> Finding:
    if not os.path.exists("/run/docker.sock"):
        return Finding(FINE, "there is none")
    if found["inside"].get("docker", 1):
        return Finding(
            FINE,
            "hidden from cells, since who reaches it is root on the host and nothing there can be "
            "undone; Supervisor.docker_socket=True shows it",
        )
    return Finding(
        LIMITED,
        "cells reach it: what they do there is not undone.",
        "Leave Supervisor.docker_socket off.",
    )


def judge_ids(found: dict[str, Any]) -> Finding:
    inside = found["inside"]
    uid, gid = os.geteuid(), os.getegid()
    if (inside.get("uid"), inside.get("gid")) != (uid, gid):
        return Finding(
            LIMITED,
            f"cells run as {inside.get('uid')}:{inside.get('gid')} instead of {uid}:{gid}.",
            "Please report this with the whole output.",
        )
    ids = sum(int(count) for _, _, count in inside.get("uid_map", []))
    if ids == 1:
        return Finding(
            FINE,
            f"yours ({uid}) as outside; files of all others show as nobody's, and system packages "
            "cannot be installed, as outside",
        )
    return Finding(FINE, "all as outside")


def judge_capabilities(found: dict[str, Any]) -> Finding:
    if os.geteuid() != 0:
        return Finding(SKIPPED, "for root only")
    held = int(found["inside"].get("capabilities", 0))
    lacking = [name for number, name in _WANTED.items() if not held >> number & 1]
    if lacking:
        return Finding(
            LIMITED,
            f"root lacks {', '.join(lacking)}: package managers will fail.",
            f"docker run --cap-add {' --cap-add '.join(lacking)}",
        )
    return Finding(
        FINE,
        "root's cells can install packages, but neither mount nor look into the sandbox "
        "(Supervisor.root_capabilities)",
    )


def check_room() -> Finding:
    if not is_linux():
        return Finding(SKIPPED, "for Linux only")
    from kernel_runtime.store.paths import store_directory

    place = store_directory()
    while not place.is_dir():
        place = place.parent
    room = shutil.disk_usage(place)
    text = f"{room.free / 1e9:.1f} GB of {room.total / 1e9:.0f} GB are free for layers and files"
    if room.free >= _LITTLE_ROOM:
        return Finding(FINE, text)
    return Finding(
        LIMITED,
        f"{text}: a large install may not fit.",
        "jupyter timetravel prune, or JUPYTER_TIMETRAVEL_STORE on a larger disk.",
    )


CHECKS: tuple[Check, ...] = (
    Check("overlays", "undoing changes outside of the workspace", check_overlays),
    Check("covered", "what is rolled back", on_trial(judge_covered)),
    Check("volatile", "fast package installs", on_trial(judge_volatile)),
    Check("renames", "moving directories", on_trial(judge_renames)),
    Check("sockets", "agents and the desktop", on_trial(judge_sockets)),
    Check("docker socket", "nothing irreversible by accident", on_trial(judge_docker)),
    Check("ids", "owners of files, ssh and git", on_trial(judge_ids)),
    Check("capabilities", "system packages as root", on_trial(judge_capabilities)),
    Check("room", "layers of large installs", check_room),
)
