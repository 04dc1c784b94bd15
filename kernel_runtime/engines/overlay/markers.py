"""What the kernel writes into a layer to say "deleted" and "nothing of below": read and made.

fs/overlayfs in the kernel, Documentation/filesystems/overlayfs.rst. A mount of an ordinary user
(``userxattr``) keeps its notes in ``user.overlay.*``, one of root in ``trusted.overlay.*``. What a
user sets under such a name inside a mount is stored with one more ``overlay.`` in the name, so
that it is not taken for a note of the kernel's; outside it has to be translated back.

Paths are bytes or str; no function follows a symlink. All raise OSError.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import Final

_NONE: Final = (errno.ENODATA, errno.EOPNOTSUPP)


class Markers:
    """The markers of one kind of mount."""

    def __init__(self, prefix: str) -> None:
        self.prefix: Final = prefix
        self.opaque: Final = prefix + "opaque"
        self.whiteout: Final = prefix + "whiteout"
        self.origin: Final = prefix + "origin"
        self.escape: Final = prefix + "overlay."
        """How the stored name of a user's own ``<prefix>X`` begins."""

    def __repr__(self) -> str:
        return f"Markers({self.prefix!r})"

    @staticmethod
    def is_whiteout(found: os.stat_result) -> bool:
        """Whether this is the device 0:0 that says "deleted"."""
        return found.st_rdev == 0 and stat.S_ISCHR(found.st_mode)

    def is_deletion(self, path: bytes, found: os.stat_result) -> bool:
        """Whether an entry of a layer says that its name is deleted.

        Besides whiteouts, since Linux 6.7: an empty regular file with an attribute. The kernel
        itself never makes those; layers from elsewhere may have them.
        """
        if stat.S_ISCHR(found.st_mode):
            return found.st_rdev == 0
        if found.st_size == 0 and stat.S_ISREG(found.st_mode):
            with contextlib.suppress(PermissionError):  # a user's own of mode 000
                return _get(path, self.whiteout) is not None
        return False

    def is_opaque(self, path: bytes) -> bool:
        """Whether a directory of a layer shows nothing of the same path in the layers below."""
        return _get(path, self.opaque) == b"y"

    def set_opaque(self, path: bytes) -> None:
        """Mark a directory. Its owner needs write permission on it."""
        os.setxattr(path, self.opaque, b"y", follow_symlinks=False)

    def set_may_have_whiteouts(self, path: bytes) -> None:
        """Mark a directory that holds whiteouts.

        A directory that exists in one layer only is listed as it is, whiteouts included, unless
        it says that it was copied up ("origin", empty: from nobody knows where).
        """
        os.setxattr(path, self.origin, b"", follow_symlinks=False)

    @staticmethod
    def make_whiteout(path: bytes) -> None:
        """Say that a name is deleted. Needs no privilege since Linux 5.8."""
        os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))

    def is_private(self, name: str) -> bool:
        """Whether an attribute's stored name is one of the kernel's own notes."""
        return name.startswith(self.prefix) and not name.startswith(self.escape)

    def shown(self, name: str) -> str:
        """The name by which an attribute that is not private is seen in a mount."""
        if name.startswith(self.escape):
            return self.prefix + name[len(self.escape) :]
        return name

    def stored(self, name: str) -> str:
        """The reverse of `shown`: where a layer has an attribute that a user sees by this name."""
        return self.escape + name[len(self.prefix) :] if name.startswith(self.prefix) else name

    def visible_attributes(self, path: bytes) -> dict[str, bytes]:
        """The extended attributes of an entry of a layer, as a mount shows them."""
        return {
            self.shown(name): value
            for name, value in all_attributes(path).items()
            if not self.is_private(name)
        }

    def raw_attributes(self, path: bytes) -> dict[str, bytes]:
        """The same under the stored names: what another layer must have to show the same."""
        found = all_attributes(path)
        return {name: value for name, value in found.items() if not self.is_private(name)}


USER: Final = Markers("user.overlay.")
"""Mounts with ``userxattr``."""

TRUSTED: Final = Markers("trusted.overlay.")
"""Mounts made with CAP_SYS_ADMIN in the first user namespace."""


def all_attributes(path: bytes) -> dict[str, bytes]:
    """All extended attributes under their stored names, the kernel's notes among them.

    Without labels that the kernel gives by itself (``security.*`` other than capabilities), and
    without those that this process may not see. Raises OSError.
    """
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NONE:
            return {}
        raise
    found = {}
    for name in names:
        if name.startswith("security.") and name != "security.capability":
            continue
        value = _get(path, name)
        if value is not None:
            found[name] = value
    return found


def _get(path: bytes, name: str) -> bytes | None:
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NONE:
            return None
        raise
