"""A root directory of the sandbox's own, where the user is root and could write to the host's.

Everything in it that is a directory on the host is a mount (overlaid, or passed through); what is
made directly in it is little, so it is captured and restored by copying.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat

from kernel_runtime import linux
from kernel_runtime.engines.overlay.copying import copy_tree
from kernel_runtime.engines.overlay.markers import TRUSTED
from kernel_runtime.engines.overlay.mounts import copy_attributes

_POPULATED = ".populated"


class RootDirectory:
    """``<environment>/root``: what the sandbox sees as /."""

    def __init__(self, environment: str) -> None:
        self._environment = environment
        self._mounted: set[str] = set()

    def enter(self) -> None:
        """Make it the root of this process and of those that it starts. Raises OSError."""
        new = f"{self._environment}/root"
        os.makedirs(new, exist_ok=True)
        self._populate(new)
        linux.mount(new, new, None, linux.MS_BIND)
        for name in sorted(self._mounted):
            if name == "proc":
                linux.mount(
                    "proc", f"{new}/proc", "proc",
                    linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC,
                )  # fmt: skip
                continue
            tree = linux.open_tree(
                f"/{name}", linux.OPEN_TREE_CLONE | linux.OPEN_TREE_CLOEXEC | linux.AT_RECURSIVE
            )
            try:
                linux.move_mount(tree, -100, f"{new}/{name}")
            finally:
                os.close(tree)
        os.chdir(new)
        # "." twice: the old root ends up on top of the new one, and is taken away (pivot_root(2))
        linux.pivot_root(".", ".")
        linux.umount(".", linux.MNT_DETACH)
        os.chdir("/")

    def _populate(self, new: str) -> None:
        mark = f"{self._environment}/{_POPULATED}"
        first = not os.path.exists(mark)
        with os.scandir("/") as entries:
            for entry in entries:
                target = f"{new}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    if os.path.islink(target) or not os.path.isdir(target):
                        with contextlib.suppress(OSError):
                            os.unlink(target)
                        os.mkdir(target)
                        copy_attributes(os.fsencode(entry.path), os.fsencode(target))
                    self._mounted.add(entry.name)
                elif first and not os.path.lexists(target):
                    if entry.is_symlink():
                        os.symlink(os.readlink(entry.path), target)
                    elif entry.is_file():
                        shutil.copy2(entry.path, target)
        if first:
            copy_attributes(b"/", os.fsencode(new))
            os.close(os.open(mark, os.O_CREAT | os.O_WRONLY, 0o600))

    def _own(self) -> list[str]:
        """Names of what is not a mount."""
        return sorted(name for name in os.listdir("/") if name not in self._mounted)

    def signature(self) -> list[list[object]]:
        """What tells whether anything was changed: cheap for few entries."""
        found: list[list[object]] = []
        todo = [f"/{name}" for name in self._own()]
        while todo:
            path = todo.pop()
            with contextlib.suppress(OSError):
                st = os.lstat(path)
                found.append([path, st.st_ino, st.st_mode, st.st_size, st.st_ctime_ns])
                if stat.S_ISDIR(st.st_mode):
                    todo += [f"{path}/{name}" for name in os.listdir(path)]
        st = os.stat("/")
        found.append(["/", st.st_mode, st.st_uid, st.st_gid])
        return sorted(found, key=str)

    def capture(self, layer: str) -> None:
        """Copy what is not a mount into a new directory. Raises OSError."""
        os.makedirs(layer)
        for name in self._own():
            _copy(f"/{name}", f"{layer}/{name}")

    def restore(self, layer: str) -> None:
        """Make it as it was. Raises OSError."""
        for name in self._own():
            _remove(f"/{name}")
        for name in os.listdir(layer):
            if name not in self._mounted:
                _copy(f"{layer}/{name}", f"/{name}")


def _copy(source: str, target: str) -> None:
    copy_tree(os.fsencode(source), os.fsencode(target), TRUSTED)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
