"""Why this machine refused a step of setting the sandbox up, and the smallest thing that mends it.

The step and its errno come from the kernel's own attempt (sandbox.init); what is read here says
which of the known causes it is.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kernel_runtime.later import dataclass

PROFILE: Final = "/etc/apparmor.d/jupyter-timetravel"
DOCTOR: Final = "`jupyter timetravel doctor` prints it"
_KINDS: Final = ("user", "pid", "mnt", "ipc")
_OWN_PREFIX: Final = ("pyvenv.cfg", "conda-meta")
_ALLOWING: Final = (
    "a seccomp profile that allows unshare, clone3 and mount (Docker: --security-opt "
    "seccomp=PROFILE; Kubernetes: seccompProfile; systemd: RestrictNamespaces=no)"
)


@dataclass(frozen=True)
class Refusal:
    """cause: a sentence without its full stop. mend: what to do, likewise."""

    cause: str
    mend: str

    def __str__(self) -> str:
        return f"{self.cause}. To mend it: {self.mend}."


def explain(step: str, code: int) -> Refusal:
    """Say why; step: unshare, uid_map, fork, mount, or mount /proc. Reads files below /proc."""
    said = f"{step} was refused ({os.strerror(code)})"
    for known in (_limit, _switched_off, _no_support, _masked, _policy):
        found = known(step, code)
        if found is not None:
            return Refusal(f"{said}: {found.cause}", found.mend)
    return Refusal(said, "let this program make namespaces, or run it on another machine")


def instead(prefix: str, workspace: Iterable[str | os.PathLike[str]] = ()) -> str:
    """What covers the packages of a Python environment without a sandbox; "" where nothing does.

    prefix: of the environment that cells run from; one that is not the user's own (the system's
    Python) is neither theirs to install into nor small enough to be captured. workspace: what is
    captured already.
    """
    own = any(os.path.lexists(os.path.join(prefix, mark)) for mark in _OWN_PREFIX)
    if not own or not os.access(prefix, os.W_OK):
        return ""
    real = Path(os.path.realpath(prefix))
    if any(real.is_relative_to(os.path.realpath(root)) for root in workspace):
        return ""
    return (
        "The packages of this Python environment can be rolled back without a sandbox too, as a "
        f"workspace: Supervisor.workspace={json.dumps([prefix])}."
    )


def apparmor_profile(program: str | None = None) -> str:
    """A profile that gives one program the right to make user namespaces, and nothing else."""
    path = program or os.path.realpath(sys.executable)
    return (
        "abi <abi/4.0>,\ninclude <tunables/global>\n"
        f"profile jupyter-timetravel {path} flags=(unconfined) {{\n  userns,\n}}\n"
    )


def apparmor_restricts() -> bool:
    """Whether AppArmor lets only programs with a profile make user namespaces (Ubuntu 23.10)."""
    return _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") in ("1", "2")


def seccomp_is_on() -> bool:
    """Whether a filter decides which system calls this process may make."""
    found = re.search(r"^Seccomp:\s*(\d)", _read("/proc/self/status"), re.MULTILINE)
    return found is not None and found[1] == "2"


def masked_proc() -> list[str]:
    """What a container has covered below /proc, so that no fresh one may be mounted."""
    places = [line.split(" ")[4] for line in _read("/proc/self/mountinfo").splitlines()]
    return sorted({p for p in places if p.startswith("/proc/") and p != "/proc/sys/fs/binfmt_misc"})


def _limit(step: str, code: int) -> Refusal | None:
    if step != "unshare" or code not in (errno.ENOSPC, errno.EUSERS):
        return None
    for kind in _KINDS:
        name = f"user.max_{kind}_namespaces"
        if _read(f"/proc/sys/{name.replace('.', '/', 1)}") == "0":
            return Refusal(f"{name} is 0", f"sudo sysctl -w {name}=15000")
    return Refusal(
        "there are as many namespaces as user.max_user_namespaces allows, or they are nested too "
        "deep",
        "sudo sysctl -w user.max_user_namespaces=15000",
    )


def _switched_off(step: str, code: int) -> Refusal | None:
    name = "kernel.unprivileged_userns_clone"
    refused = step == "unshare" and code == errno.EPERM and not _is_root()
    if refused and _read(f"/proc/sys/{name.replace('.', '/', 1)}") == "0":
        return Refusal(f"{name} is 0", f"sudo sysctl -w {name}=1")
    return None


def _no_support(step: str, code: int) -> Refusal | None:
    if step == "unshare" and code in (errno.EINVAL, errno.ENOSYS):
        return Refusal("this kernel was built without user namespaces", "use another kernel")
    return None


def _masked(step: str, code: int) -> Refusal | None:
    if step != "mount /proc" or code != errno.EPERM:
        return None
    covered = masked_proc()
    if not covered:
        return None
    return Refusal(
        f"parts of /proc are covered ({', '.join(covered[:3])}{', …' if covered[3:] else ''}), as "
        "containers do",
        "docker run --security-opt systempaths=unconfined (Kubernetes: procMount: Unmasked)",
    )


def _policy(step: str, code: int) -> Refusal | None:
    if code not in (errno.EPERM, errno.EACCES):
        return None
    label = _read("/proc/self/attr/current")
    confined = label and not label.startswith("unconfined") and "(" in label
    # unshare itself is not what AppArmor refuses first: it takes the new capabilities away
    if step != "unshare" or not seccomp_is_on():
        if confined:
            return Refusal(
                f"the AppArmor profile {label.partition(' ')[0]} forbids it",
                "a profile that allows mount and userns (Docker: --security-opt apparmor=PROFILE)",
            )
        if apparmor_restricts():
            return Refusal(
                "AppArmor gives this right to programs with a profile only "
                "(kernel.apparmor_restrict_unprivileged_userns)",
                f"a profile for this one program in {PROFILE} ({DOCTOR})",
            )
    if seccomp_is_on():
        return Refusal("a seccomp filter forbids it, as containers do", _ALLOWING)
    if step == "unshare" and not any(
        line.split(" ")[4] == "/" for line in _read("/proc/self/mountinfo").splitlines()
    ):
        return Refusal("this is a chroot environment", "enter it by pivot_root or unshare --root")
    if _is_root():
        return Refusal(
            "root has no CAP_SYS_ADMIN here",
            "docker run --cap-add SYS_ADMIN, or allow user namespaces",
        )
    return None


def _is_root() -> bool:
    return os.geteuid() == 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip("\0\n ")
    except OSError:
        return ""
