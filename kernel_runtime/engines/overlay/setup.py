"""Setting an environment up in the sandbox's init: from a plan (plan.py) to mounts (mounts.py).

Order: the new root directory where there is one, /dev/shm, the overlays from the top down, then
what is passed through on top of them, then what nobody inside may see.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Any

from kernel_runtime import linux
from kernel_runtime.engines.overlay.handing import copy_attributes
from kernel_runtime.engines.overlay.mounts import Mounts, Root
from kernel_runtime.engines.overlay.plan import COPIED_BYTES
from kernel_runtime.engines.overlay.rootdir import RootDirectory

_QUIET = linux.MS_NOSUID | linux.MS_NODEV


class Environment:
    """What init knows of one environment."""

    def __init__(self, request: dict[str, Any]) -> None:
        """request: the plan as JSON (plan.Plan.request). Raises OSError if nothing can be done."""
        self.problems: dict[str, str] = {}
        self.root_directory: RootDirectory | None = None
        if request["pivot"]:
            self.root_directory = RootDirectory(request["directory"])
            self.root_directory.enter()
        _own_shared_memory()
        directory = os.open(request["directory"], os.O_PATH | os.O_DIRECTORY)
        passes = _clones(request["passes"], self.problems)
        hosts = self._opened(request["roots"])
        self.mounts = Mounts(
            directory, userxattr=request["userxattr"], volatile=request["volatile"]
        )
        for spec in request["roots"]:
            try:
                if spec["path"] in hosts:
                    self._cover(spec, hosts[spec["path"]])
            except OSError as error:
                self.problems[spec["path"]] = f"{error.strerror or error}"
        for path, fd in passes.items():
            self._pass_through(path, fd)
        for path in request["masked"]:
            with contextlib.suppress(OSError):
                _hide(path)
        for path in request["blocked"]:
            with contextlib.suppress(OSError):
                linux.mount("/dev/null", path, None, linux.MS_BIND)

    def _opened(self, roots: list[dict[str, Any]]) -> dict[str, int]:
        """The host's directories, opened before one that is covered hides those mounted below."""
        found = {}
        for spec in roots:
            try:
                found[spec["path"]] = os.open(spec["path"], os.O_PATH | os.O_DIRECTORY)
            except OSError as error:
                self.problems[spec["path"]] = f"{error.strerror or error}"
        return found

    def _cover(self, spec: dict[str, Any], host: int) -> None:
        path = spec["path"]
        base = [host]
        below = 0
        try:
            if spec["hidden"] or spec["copies"]:
                linux.mount("timetravel-mask", path, "tmpfs", _QUIET, "size=4m,mode=0755")
                below = 1
                mask = _mask(path, host, spec["hidden"], spec["copies"])
                base = [mask, host]
                if spec["base_overlay"]:
                    base = [self._base_overlay(path, base)]
                    below = 2
            root = Root(path, base, list(spec["stack"]), spec["writable"], below == 2)
            self.mounts.add(root)
            self.mounts.nest(root)
        except OSError:
            for _ in range(below):
                with contextlib.suppress(OSError):
                    linux.umount(path, linux.MNT_DETACH)
            raise

    def _base_overlay(self, path: str, base: list[int]) -> int:
        """The layers lie below the host's directory: another superblock is needed in between.

        A layer that lies within a lower directory is refused (ELOOP, overlapping layers).
        """
        data = "lowerdir=" + ":".join(f"/proc/self/fd/{fd}" for fd in base)
        if self.mounts.markers.prefix.startswith("user."):
            data += ",userxattr"
        linux.mount("timetravel-base", path, "overlay", linux.MS_RDONLY, data)
        return os.open(path, os.O_PATH | os.O_DIRECTORY)

    def _pass_through(self, path: str, fd: int) -> None:
        try:
            is_directory = _is_directory(fd)
            if not self.mounts.adopt(path, fd, is_directory=is_directory):
                os.close(fd)  # it is the host's own there anyway
        except OSError as error:
            self.problems[path] = f"it cannot be passed through: {error.strerror or error}"


def _is_directory(fd: int) -> bool:
    """Without asking the filesystem, which may be one that does not answer."""
    try:
        os.close(os.open(f"/proc/self/fd/{fd}", os.O_PATH | os.O_DIRECTORY))
    except NotADirectoryError:
        return False
    return True


def _clones(paths: list[str], problems: dict[str, str]) -> dict[str, int]:
    """Copies of mounts, made before anything covers them."""
    found = {}
    for path in paths:
        try:
            found[path] = linux.open_tree(
                path, linux.OPEN_TREE_CLONE | linux.OPEN_TREE_CLOEXEC | linux.AT_RECURSIVE
            )
        except OSError as error:
            problems[path] = f"it cannot be passed through: {error.strerror or error}"
    return found


def _hide(path: str) -> None:
    """Cover a path of the host's own that nobody inside may see."""
    if os.path.isdir(path):
        linux.mount("none", path, "tmpfs", linux.MS_RDONLY | _QUIET, "size=4k,mode=0")
    else:
        linux.mount("/dev/null", path, None, linux.MS_BIND)


def _own_shared_memory() -> None:
    """/dev/shm and message queues of our own (ipc_namespaces(7)), as large as the host's."""
    size = os.statvfs("/dev/shm")
    linux.mount(
        "tmpfs",
        "/dev/shm",
        "tmpfs",
        _QUIET,
        f"mode=1777,size={size.f_frsize * size.f_blocks}",
    )
    if os.path.isdir("/dev/mqueue"):
        with contextlib.suppress(OSError):
            linux.mount("mqueue", "/dev/mqueue", "mqueue", _QUIET | linux.MS_NOEXEC)


def _mask(path: str, host: int, hidden: list[str], copies: list[str]) -> int:
    """Fill an empty tmpfs: a layer above the host's own, with whiteouts for what must not be seen.

    copies: files that are mount points; and files that programs refuse if their owner is not root
    or the user (ssh's settings): in a user namespace root's files belong to nobody, so they get a
    copy that is the user's.
    """
    top = os.open(path, os.O_PATH | os.O_DIRECTORY)
    mask, below = f"/proc/self/fd/{top}", f"/proc/self/fd/{host}"
    directories = []
    for name in [*hidden, *copies]:
        done = ""
        for part in name.split("/")[:-1]:
            done = f"{done}/{part}"
            if not os.path.lexists(mask + done):
                os.mkdir(mask + done)
                directories.append(done)
        if name in hidden:
            os.mknod(f"{mask}/{name}", stat.S_IFCHR, 0)
        else:
            _copy_owned(f"{below}/{name}", f"{mask}/{name}")
    for done in ["", *directories]:
        with contextlib.suppress(FileNotFoundError):
            copy_attributes(os.fsencode(below + done), os.fsencode(mask + done), read_only=True)
    return top


def _copy_owned(source: str, target: str) -> None:
    with contextlib.suppress(OSError), open(source, "rb") as f:
        data = f.read(COPIED_BYTES)
        fd = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o444)
        with open(fd, "wb") as copy:
            copy.write(data)
            st = os.fstat(f.fileno())
            if os.geteuid() == 0:
                os.fchown(fd, st.st_uid, st.st_gid)
                os.fchmod(fd, stat.S_IMODE(st.st_mode))
            os.utime(copy.fileno(), ns=(st.st_atime_ns, st.st_mtime_ns))
