"""How far a filesystem's timestamps and change notices can be trusted.

A file whose stat is the same as at the last capture is taken for unchanged only if a write in
between must have moved its ctime. That needs a ctime that user programs cannot set, and a
clock fine enough. inotify needs all writers to be on this machine.
"""

from __future__ import annotations

from typing import Final

from kernel_runtime.engines.workspace import linux
from kernel_runtime.later import dataclass

_MS: Final = 1_000_000
_S: Final = 1_000_000_000


@dataclass(frozen=True)
class Trust:
    """Answers for one filesystem.

    stat: an unchanged (dev, ino, size, mtime, ctime, mode) can prove unchanged content.
    same_clock: its timestamps come from this machine's clock.
    granularity_ns: two writes further apart than this have different timestamps.
    notices: inotify reports every change.
    """

    name: str
    stat: bool
    same_clock: bool
    granularity_ns: int
    notices: bool


# Timestamps of local filesystems are those of the kernel's clock tick: 10 ms at CONFIG_HZ=100.
_LOCAL: Final = 20 * _MS
# Magic numbers: linux/magic.h and the projects' own headers.
_KNOWN: Final[dict[int, Trust]] = {
    0xEF53: Trust("ext4", True, True, _LOCAL, True),
    0x58465342: Trust("xfs", True, True, _LOCAL, True),
    0x9123683E: Trust("btrfs", True, True, _LOCAL, True),
    0x01021994: Trust("tmpfs", True, True, _LOCAL, True),
    0xF2F52010: Trust("f2fs", True, True, _LOCAL, True),
    0x2FC12FC1: Trust("zfs", True, True, _LOCAL, True),
    0xCA451A4E: Trust("bcachefs", True, True, _LOCAL, True),
    0x794C7630: Trust("overlay", True, True, _LOCAL, False),
    0x6969: Trust("nfs", True, False, 3 * _S, False),
    0x00C36400: Trust("ceph", True, False, 3 * _S, False),
    0x0BD00BD0: Trust("lustre", True, False, 3 * _S, False),
    0x47504653: Trust("gpfs", True, False, 3 * _S, False),
}
# FAT keeps no ctime, FUSE and SMB pass on what the other side invents: always read again.
_UNKNOWN: Final = Trust("other", False, False, 3 * _S, False)


# proc, sysfs, cgroup, cgroup2, devpts, debugfs, tracefs, securityfs, bpf, pstore, mqueue, configfs
_KERNEL: Final = frozenset((
    0x9FA0, 0x62656572, 0x27E0EB, 0x63677270, 0x1CD1, 0x64626720, 0x74726163, 0x73636673,
    0xCAFE4A11, 0x6165676C, 0x19800202, 0x62656570,
))  # fmt: skip


def is_kernel_interface(fd: int) -> bool:
    """Whether fd lies on a filesystem that holds no data but shows the kernel's."""
    return linux.filesystem_type(fd) in _KERNEL


def trust_of(fd: int) -> Trust:
    """What is known of the filesystem that holds fd."""
    return _KNOWN.get(linux.filesystem_type(fd), _UNKNOWN)


def granularity_ns(trust: Trust, ctime_ns: int) -> int:
    """The granularity to assume for a file with this ctime.

    ext4 with 128-byte inodes keeps whole seconds; such a ctime shows it.
    """
    if ctime_ns % _S == 0:
        return max(trust.granularity_ns, _S + _LOCAL)
    return trust.granularity_ns
