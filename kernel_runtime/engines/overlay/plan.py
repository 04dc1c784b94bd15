"""Which directories of the host are overlaid, which are passed through, which are hidden.

Pure but for the two questions that `Host` answers; so every host can be tried in a test.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any, Final

from kernel_runtime.later import dataclass

HOST_PATHS: Final = ("/proc", "/sys", "/dev", "/run", "/tmp")
"""Always the host's own: devices, and where programs meet (sockets, agents, displays)."""

DOCKER_SOCKETS: Final = ("/run/docker.sock", "/run/podman/podman.sock", "/run/containerd")
"""Whoever may speak to these is root on the host."""

OWNED_COPIES: Final = ("/etc/ssh/ssh_config",)
OWNED_COPIES_IN: Final = ("/etc/ssh/ssh_config.d",)

COPIED_BYTES: Final = 1 << 20
"""A file that is larger is not copied into the layers."""

_REMOTE: Final = (
    "nfs", "cifs", "smb", "fuse", "9p", "ceph", "gluster", "lustre", "afs", "autofs", "gpfs",
    "beegfs", "virtiofs", "davfs", "ocfs2", "gfs2", "orangefs", "coda",
)  # fmt: skip
_PSEUDO: Final = frozenset(
    (
        "proc", "sysfs", "cgroup", "cgroup2", "devtmpfs", "devpts", "mqueue", "securityfs",
        "tracefs", "debugfs", "bpf", "hugetlbfs", "configfs", "binfmt_misc", "fusectl",
        "efivarfs", "nsfs", "pstore", "rpc_pipefs", "selinuxfs",
    )
)  # fmt: skip


_FOREIGN: Final = (
    "its owner or group does not exist in your user namespace, so nothing in it could be changed; "
    "`chgrp -R` to your own group where it is yours"
)


@dataclass(frozen=True)
class MountPoint:
    """One line of /proc/self/mountinfo (proc(5))."""

    path: str
    fstype: str

    @property
    def why_not(self) -> str:
        """Why it is not overlaid, or ""."""
        if self.fstype in _PSEUDO:
            return f"{self.fstype} is not a filesystem of files"
        if self.fstype.startswith(_REMOTE):
            return f"{self.fstype} can change under us, and may not answer"
        return ""


@dataclass(frozen=True)
class Host:
    """What must be asked of the host."""

    mounts: Sequence[MountPoint]
    children: Callable[[str], list[str]]
    """Names of the real directories in a directory; [] if it cannot be read."""
    writable: Callable[[str], bool]
    is_root: bool
    own_user_namespace: bool
    foreign: Sequence[str] = ()
    """Directories that the user may write to and whose owner or group does not exist inside."""
    owned: Sequence[str] = ()
    """The user's directories in directories of others."""
    files: Mapping[str, bool] = field(default_factory=dict)
    """Mount points that are no directories (containers have /etc/hosts); whether they are small
    regular files, which can be copied."""


@dataclass
class RootPlan:
    """One directory to overlay; paths in it are relative to it."""

    path: str
    writable: bool
    hidden: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)
    base_overlay: bool = False


@dataclass
class Plan:
    """What is done with the host's directories."""

    roots: list[RootPlan] = field(default_factory=list)
    passes: list[str] = field(default_factory=list)
    masked: list[str] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    not_covered: dict[str, str] = field(default_factory=dict)
    """Paths whose writes reach the host, with the reason: to be told."""
    pivot: bool = False
    userxattr: bool = True
    volatile: bool = True

    def root_of(self, path: str) -> RootPlan | None:
        """The root that a path lies in."""
        inside = [root for root in self.roots if within(path, root.path)]
        return max(inside, key=lambda root: len(root.path), default=None)

    def request(self, directory: str, stacks: dict[str, list[str]]) -> dict[str, Any]:
        """As JSON for the sandbox's init. stacks: the layers to start with."""
        return {
            "directory": directory,
            "roots": [
                {**asdict(r), "stack": stacks.get(r.path, [])}
                for r in sorted(self.roots, key=lambda r: r.path)
            ],
            "passes": sorted(self.passes),
            "masked": self.masked,
            "blocked": self.blocked,
            "pivot": self.pivot,
            "userxattr": self.userxattr,
            "volatile": self.volatile,
        }


def make_plan(
    host: Host,
    *,
    workspace: Iterable[str] = (),
    host_paths: Iterable[str] = (),
    hidden: Iterable[str] = (),
    blocked: Iterable[str] = (),
    environment: str,
    owned_copies: Iterable[str] = (),
) -> Plan:
    """Decide. All paths are absolute and real.

    workspace, host_paths: the host's own inside too. hidden: what nobody inside may see.
    environment: where the layers are. owned_copies: see setup.py.
    """
    plan = Plan(pivot=host.is_root, userxattr=host.own_user_namespace)
    through = [*HOST_PATHS, *host_paths]
    own = {*through, *workspace}
    for path in host.foreign if host.own_user_namespace else ():
        if not any(within(path, one) for one in own):
            plan.not_covered[path] = _FOREIGN
            own.add(path)
    unseen = {*hidden, environment}
    for name in host.children("/"):
        _cover(plan, host, f"/{name}", own | unseen)
    if host.own_user_namespace:
        _cover_owned(plan, host, own | unseen)
    _cover_files(plan, host, own | unseen)
    plan.passes = sorted(
        path
        for path in {*own, *plan.not_covered}
        if (root := plan.root_of(path)) is not None and root.path != path
    )
    for path in sorted(unseen):
        if any(path != one and within(path, one) for one in unseen):
            continue  # hidden with what it lies in
        root = plan.root_of(path)
        if root is None or any(within(path, one) for one in plan.passes):
            plan.masked.append(path)
        else:
            root.hidden.append(os.path.relpath(path, root.path))
    for path in owned_copies if host.own_user_namespace else ():
        if (root := plan.root_of(path)) is not None:
            root.copies.append(os.path.relpath(path, root.path))
    plan.blocked = sorted(blocked)
    if (root := plan.root_of(environment)) is not None:
        root.base_overlay = True
    return plan


def _cover(plan: Plan, host: Host, path: str, own: set[str]) -> None:
    if any(within(path, one) for one in own):
        return
    here = [m for m in host.mounts if m.path == path]
    if here and (why := here[-1].why_not):
        plan.not_covered[path] = why
        return
    # of several at one place the last one is on top
    top = {m.path: m for m in host.mounts if within(m.path, path) and m.path != path}
    below = list(top.values())
    if below and host.own_user_namespace:
        # an overlay over a directory with mounts below it is refused: they are locked to it
        if host.writable(path):
            plan.not_covered[path] = (
                f"only the directories in it are covered: {below[0].path} is mounted below it"
            )
        for name in host.children(path):
            _cover(plan, host, f"{path}/{name}", own)
        return
    plan.roots.append(RootPlan(path, host.writable(path)))
    for mount in below:
        if not any(within(mount.path, one) for one in own):
            _cover_mount(plan, host, mount, own)


def _cover_mount(plan: Plan, host: Host, mount: MountPoint, own: set[str]) -> None:
    if any(within(mount.path, path) for path in plan.not_covered):
        return
    if mount.why_not:
        plan.not_covered[mount.path] = mount.why_not
    elif mount.path not in host.files and all(root.path != mount.path for root in plan.roots):
        plan.roots.append(RootPlan(mount.path, host.writable(mount.path)))


def _cover_owned(plan: Plan, host: Host, own: set[str]) -> None:
    """Whatever is written is copied up with the directories on the way to it, and those of others
    cannot be made in a user namespace (EOVERFLOW): what is below them needs an overlay of its own.
    """
    for path in sorted(host.owned):
        root = plan.root_of(path)
        if root is None or root.path in (path, os.path.dirname(path)):
            continue
        if not any(within(path, one) for one in own):
            plan.roots.append(RootPlan(path, True))


def _cover_files(plan: Plan, host: Host, own: set[str]) -> None:
    """An overlay shows what lies below a file that has a mount of its own: it is copied."""
    for path, small in host.files.items():
        root = plan.root_of(path)
        if root is None or any(within(path, one) for one in own):
            continue
        if small:
            root.copies.append(os.path.relpath(path, root.path))
        else:
            plan.not_covered[path] = "it is a file with a mount of its own"


def within(path: str, directory: str) -> bool:
    """Whether a path is a directory or lies in it, by their names."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def read_mounts(text: str) -> list[MountPoint]:
    """Parse /proc/self/mountinfo: mount points in their order, spaces unescaped."""
    found = []
    for line in text.splitlines():
        fields = line.split(" ")
        path = fields[4]
        for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
            path = path.replace(code, character)
        found.append(MountPoint(path, fields[fields.index("-") + 1]))
    return found


def this_host(
    *, own_user_namespace: bool, all_ids: bool = False, paths: Iterable[str] = ()
) -> Host:
    """The machine that this runs on. paths: where the user is likely to write, wherever it is.

    all_ids: the user namespace has every id that there is here, not the user's own alone.
    """
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
        mounts = read_mounts(f.read())
    foreign: list[str] = []
    owned: list[str] = []
    if own_user_namespace and not all_ids:
        foreign, owned = _near_the_top(mounts, paths)
    return Host(
        mounts=mounts,
        children=_directories,
        writable=lambda path: os.access(path, os.W_OK),
        is_root=os.geteuid() == 0,
        own_user_namespace=own_user_namespace,
        foreign=foreign,
        owned=owned,
        files=_files(mounts),
    )


def _files(mounts: Iterable[MountPoint]) -> dict[str, bool]:
    found = {}
    # what lies in a remote filesystem, or is hidden by one, is reached through it only
    apart = [*HOST_PATHS, *(mount.path for mount in mounts if mount.why_not)]
    for mount in mounts:
        if any(within(mount.path, path) for path in apart):
            continue
        try:
            st = os.stat(mount.path)
        except OSError:
            continue
        if not stat.S_ISDIR(st.st_mode):
            found[mount.path] = stat.S_ISREG(st.st_mode) and st.st_size <= COPIED_BYTES
    return found


_FOREIGN_DEPTH: Final = 3
_FOREIGN_ENTRIES: Final = 5000
_SYSTEM: Final = frozenset({"/usr", "/etc", "/boot", "/proc", "/sys", "/dev", "/run", "/tmp"})


def _near_the_top(
    mounts: Iterable[MountPoint], paths: Iterable[str]
) -> tuple[list[str], list[str]]:
    """Look for directories that this user may write to but that belong to others (/var/tmp, shared
    folders of a group), and for the user's own in those of others (/data/users/me).

    Only near the top, where a look at everything would take seconds, and on the way to paths.
    """
    uid, gid = os.geteuid(), os.getegid()
    # a file server that is gone would be waited for
    apart = _SYSTEM | {mount.path for mount in mounts if mount.why_not}
    foreign: list[str] = []
    owned: set[str] = set()
    todo = [("/", 0, False)]
    seen = 0
    while todo and seen < _FOREIGN_ENTRIES:
        parent, depth, mine = todo.pop(0)
        try:
            with os.scandir(parent) as entries:
                for entry in entries:
                    seen += 1
                    if not entry.is_dir(follow_symlinks=False) or entry.path in apart:
                        continue
                    st = entry.stat(follow_symlinks=False)
                    theirs = st.st_uid != uid or st.st_gid != gid
                    if theirs and os.access(entry.path, os.W_OK):
                        foreign.append(entry.path)
                        continue
                    if not (theirs or mine):
                        owned.add(entry.path)
                    if depth + 1 < _FOREIGN_DEPTH:
                        todo.append((entry.path, depth + 1, not theirs))
        except OSError:
            continue
    for path in paths:
        if not any(within(path, one) for one in {*apart, *foreign}):
            owned.update(_first_owned(path, uid, gid))
    return foreign, sorted(owned)


def _first_owned(path: str, uid: int, gid: int) -> list[str]:
    """The first directory on the way to a path that is the user's."""
    at = ""
    for name in path.strip("/").split("/"):
        at += f"/{name}"
        try:
            st = os.lstat(at)
        except OSError:
            break
        if (st.st_uid, st.st_gid) == (uid, gid):
            return [at] if stat.S_ISDIR(st.st_mode) else []
    return []


def _directories(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
    except OSError:
        return []


def copies_on_this_host() -> list[str]:
    """Files that programs refuse when their owner is neither root nor the user."""
    found = [path for path in OWNED_COPIES if os.path.isfile(path)]
    for directory in OWNED_COPIES_IN:
        try:
            found += [f"{directory}/{n}" for n in os.listdir(directory)]
        except OSError:
            continue
    return sorted(found)
