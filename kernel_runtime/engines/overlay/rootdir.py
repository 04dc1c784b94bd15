"""A root directory of the sandbox's own, where the user is root and could write to the host's.

Everything in it that is a directory on the host is a mount (overlaid, or passed through); what is
made directly in it is little, so it is captured and restored by copying. ``root.json`` beside it
says which layer it was last equal to, so that a start after a kill knows what it finds.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from kernel_runtime import linux
from kernel_runtime.engines.overlay import faults
from kernel_runtime.engines.overlay.copying import copy_tree
from kernel_runtime.engines.overlay.handing import copy_attributes
from kernel_runtime.engines.overlay.markers import TRUSTED
from kernel_runtime.engines.overlay.paths import private
from kernel_runtime.later import dataclass

_POPULATED = ".populated"
_STAGED = ".tt-restoring"


@dataclass
class Known:
    """What is in ``root.json``. restored: whether a restore, and not a capture, made them equal."""

    layer: str
    restored: bool
    mounted: list[str]
    signature: list[list[Any]]


def read_known(directory: str) -> Known | None:
    """None: there is none, or a restore was cut off. directory: the environment's."""
    try:
        with open(f"{directory}/root.json") as f:
            return Known(**json.load(f))
    except (OSError, ValueError, TypeError):
        return None


def is_changed(directory: str) -> bool:
    """Whether something was changed in it since it was last equal to a layer; seen from outside."""
    known = read_known(directory)
    return known is not None and known.signature != signature(f"{directory}/root", known.mounted)


def signature(top: str, mounted: Collection[str]) -> list[list[Any]]:
    """What tells whether anything was changed: cheap for few entries."""
    found: list[list[Any]] = []
    todo = [f"/{name}" for name in os.listdir(top or "/") if name not in mounted]
    while todo:
        path = todo.pop()
        with contextlib.suppress(OSError):
            st = os.lstat(top + path)
            found.append([path, st.st_ino, st.st_mode, st.st_size, st.st_ctime_ns])
            if stat.S_ISDIR(st.st_mode):
                todo += [f"{path}/{name}" for name in os.listdir(top + path)]
    st = os.stat(top or "/")
    found.append(["/", 0, st.st_mode, st.st_uid, st.st_gid])
    return sorted(found)


class RootDirectory:
    """``<environment>/root``: what the sandbox sees as /."""

    def __init__(self, environment: str) -> None:
        self._environment = environment
        self._mounted: set[str] = set()
        self._directory = -1
        self._known: Known | None = None

    def enter(self) -> None:
        """Make it the root of this process and of those that it starts. Raises OSError."""
        new = f"{self._environment}/root"
        os.makedirs(new, exist_ok=True)
        self._directory = os.open(self._environment, os.O_PATH | os.O_DIRECTORY)
        self._known = read_known(self._environment)
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
            if name == "dev":
                _make_read_only(f"{new}/dev")
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
                        os.mkdir(target)  # what is mounted there shows its own attributes
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

    def start(self, layer: str) -> bool:
        """Whether this is what a session has left behind with this layer, or later.

        Otherwise it is to be restored: a restore was cut off, or was not noted.
        """
        known = self._known
        return known is not None and (known.layer == layer or not known.restored)

    def is_at(self, layer: str) -> bool:
        """Whether nothing was changed since it was equal to a layer."""
        known = self._known
        return known is not None and known.layer == layer and known.signature == self._signature()

    def _signature(self) -> list[list[Any]]:
        return signature("", self._mounted)

    def capture(self, layer: str, files: str) -> None:
        """Copy what is not a mount into a new directory. Raises OSError."""
        now = self._signature()
        os.makedirs(files)
        for name in self._own():
            _copy(f"/{name}", f"{files}/{name}")
            faults.point("init: root half captured")
        copy_attributes(b"/", os.fsencode(files))
        self._note(Known(layer, False, sorted(self._mounted), now))

    def restore(self, layer: str, files: str) -> None:
        """Make it as it was. Raises OSError; nothing has changed if there was no room for it."""
        staged = f"/{_STAGED}"
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(staged)
        names = [name for name in os.listdir(files) if name not in self._mounted]
        try:
            os.mkdir(staged)
            for name in names:
                _copy(f"{files}/{name}", f"{staged}/{name}")
            self._note(None)
        except OSError:
            shutil.rmtree(staged, ignore_errors=True)
            raise
        faults.point("init: root staged")
        for name in self._own():
            if name != _STAGED:
                _remove(f"/{name}")
        faults.point("init: root removed")
        for name in names:
            _rename(f"{staged}/{name}", f"/{name}")
        os.rmdir(staged)
        copy_attributes(os.fsencode(files), b"/")
        self._note(Known(layer, True, sorted(self._mounted), self._signature()))

    def _note(self, known: Known | None) -> None:
        self._known = known
        here = f"/proc/self/fd/{self._directory}/root.json"
        if known is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(here)
            return
        with open(here + ".new", "w", opener=private) as f:
            json.dump(asdict(known), f)
        os.replace(here + ".new", here)


def _make_read_only(path: str) -> None:
    """Of one mount, not of those below it: devices can be used, and neither deleted nor changed."""
    kept = os.statvfs(path).f_flag & (linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    linux.mount("none", path, None, linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | kept)


def _rename(source: str, target: str) -> None:
    """A directory's times are those that it had, also where its parent's entry in it changes."""
    st = os.lstat(source)
    os.rename(source, target)
    os.utime(target, ns=(st.st_atime_ns, st.st_mtime_ns), follow_symlinks=False)


def _copy(source: str, target: str) -> None:
    copy_tree(os.fsencode(source), os.fsencode(target), TRUSTED)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
