"""The mounts of an environment, as the sandbox's init makes and changes them.

A root is a directory of the host over which an overlay is mounted. Its stack is its frozen layers,
newest first; its upper is the layer that is being written. A capture makes the upper a layer and
mounts a new overlay over the old one; a restore mounts one with another stack. Nothing is copied.

Runs in the sandbox's init, as process 1 of the namespaces that it was born in: single-threaded,
standard library only, and everything that it needs is imported before the first mount.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from kernel_runtime import linux
from kernel_runtime.engines.overlay import faults, held
from kernel_runtime.engines.overlay.copying import copy_tree
from kernel_runtime.engines.overlay.entries import remove
from kernel_runtime.engines.overlay.handing import Handing, copy_attributes, find_live
from kernel_runtime.engines.overlay.markers import TRUSTED, USER, Markers
from kernel_runtime.later import dataclass

_PARKING = "/dev/shm"
"""Where the newest mount waits while older ones below it are taken away. Ours, and on the way of
nobody: whoever could look is stopped."""


@dataclass
class Child:
    """A mount that must stay on top of a root: the workspace, another filesystem, another root."""

    path: str  # relative to the root
    fd: int
    is_directory: bool = True


@dataclass
class Root:
    """One overlaid directory."""

    path: str
    base: list[int]  # descriptors of what lies below all layers
    stack: list[str]
    writable: bool
    base_overlay: bool = False  # whether the base is a read-only overlay of ours
    upper: str = ""
    generations: int = 0  # mounts of ours on top of each other, which could be taken away
    pinned: list[int] = field(default_factory=list)  # ids of those that are still there
    live: dict[tuple[int, bytes], int] = field(default_factory=dict)
    """Files that were being written at a capture: mount and name there, and the inode itself."""
    born: tuple[object, ...] = ()
    children: list[Child] = field(default_factory=list)


@dataclass
class Switched:
    """What a capture did to one root."""

    layer: str  # the id of the layer that was the upper; "" if it was captured by copy
    upper: str
    copied: list[str] = field(default_factory=list)
    """Files that some process holds open for writing, which were copied into the layer."""
    held_by: list[str] = field(default_factory=list)
    """Processes that are inside: because of them all was copied."""
    error: str = ""
    """Why this root was not captured; then it is as it was."""


def new_layer_id() -> str:
    """Ten hexadecimal digits: short, since all of a stack must fit into one page."""
    return os.urandom(5).hex()


class Mounts:
    """All roots of one sandbox."""

    def __init__(self, directory: int, *, userxattr: bool, volatile: bool) -> None:
        """directory: an O_PATH descriptor of the environment's directory on the host."""
        self.layers = os.open("layers", os.O_PATH | os.O_DIRECTORY, dir_fd=directory)
        # what lies there is reached through this descriptor also once the path is hidden
        self._directory = f"/proc/self/fd/{self.layers}"
        self.markers: Markers = USER if userxattr else TRUSTED
        self._options = ["userxattr"] if userxattr else ["redirect_dir=off"]
        self._options += ["index=off", "metacopy=off"] + (["volatile"] if volatile else [])
        self.roots: dict[str, Root] = {}
        self._closing: list[int] = []

    # -- setting up -------------------------------------------------------------------------

    def add(self, root: Root) -> None:
        """Mount a root for the first time. Raises OSError; then it is as on the host."""
        newest = self._files(root.stack[0]) if root.stack else f"/proc/self/fd/{root.base[0]}"
        upper = self._new_upper(newest, read_only=not root.stack and not root.writable)
        try:
            self._overlay(root, root.stack, upper)
        except OSError:
            self._discard(upper)
            raise
        self.roots[root.path] = root

    def adopt(self, path: str, fd: int, *, is_directory: bool = True) -> bool:
        """Attach a detached mount at a path, and keep it there; say whether it is below a root."""
        root = self._root_above(path)
        if root is None:
            return False
        child = Child(os.path.relpath(path, root.path), fd, is_directory)
        self._attach(root, child)
        root.children.append(child)
        return True

    def _root_above(self, path: str) -> Root | None:
        inside = [
            r for r in self.roots.values() if path != r.path and path.startswith(r.path + "/")
        ]
        return max(inside, key=lambda r: len(r.path), default=None)

    def nest(self, root: Root) -> None:
        """A root that was mounted below another one moves along with it."""
        above = self._root_above(root.path)
        if above is not None:
            fd = linux.open_tree(root.path, linux.OPEN_TREE_CLOEXEC)
            above.children.append(Child(os.path.relpath(root.path, above.path), fd))

    # -- capture and restore ----------------------------------------------------------------

    def changed(self) -> list[Root]:
        """The roots whose upper holds anything."""
        return [root for root in self.roots.values() if self._is_changed(root)]

    def _is_changed(self, root: Root) -> bool:
        files = self._files(root.upper)
        with os.scandir(files) as entries:
            if next(entries, None) is not None:
                return True
        return _attributes(files, self.markers) != root.born

    def capture(
        self,
        roots: Sequence[Root],
        others: Sequence[int],
        executor: int | None,
        *,
        by_copy: bool = False,
    ) -> dict[str, Switched]:
        """Make uppers layers. All processes must be stopped.

        others: pids that cannot be asked to open their files again; executor: the one that will.
        by_copy: every upper stays, a copy of it becomes the layer.
        """
        held_of = held.look({r.path: r.pinned for r in roots}, others, executor)
        found = {}
        for root in roots:
            try:
                if by_copy:
                    found[root.path] = Switched(self._copied(root.upper), root.upper)
                else:
                    found[root.path] = self._capture(root, held_of[root.path])
            except OSError as error:  # those before it are captured all the same
                found[root.path] = Switched("", root.upper, error=str(error))
        return found

    def _capture(self, root: Root, kept: held.Held) -> Switched:
        frozen = root.upper
        if kept.inside:
            # a relative path leads such a process into the layer: it must stay the upper
            return Switched(self._copied(frozen), frozen, held_by=kept.inside)
        upper = self._new_upper(self._files(frozen))
        handing = Handing(self._files(frozen), f"{self._directory}/{upper}", self.markers)
        live = find_live(root, kept.written, handing.frozen)
        try:
            handing.over(live.names.values())
            faults.point("init: handed over")
            self._overlay(root, [frozen, *root.stack], upper)
            faults.point("init: switched")
        except OSError:
            handing.back()
            self._discard(upper)
            raise
        root.stack.insert(0, frozen)
        root.live.update(live.known)
        return Switched(frozen, upper, [os.fsdecode(path) for path in handing.moved])

    def _copied(self, layer: str) -> str:
        id = new_layer_id()
        try:
            os.mkdir(f"{self._directory}/{id}", 0o700)
            copy_tree(os.fsencode(self._files(layer)), os.fsencode(self._files(id)), self.markers)
        except OSError:
            self._discard(id)
            raise
        return id

    def restore(self, stacks: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Give roots other stacks. No process but frozen ones may live; return the new uppers.

        A root whose stack is the wanted one and whose upper is empty stays. Raises OSError; then
        the roots are as they were.
        """
        done: list[tuple[Root, str, list[str]]] = []
        try:
            for path, stack in stacks.items():
                root = self.roots[path]
                if list(stack) == root.stack and not self._is_changed(root):
                    continue
                before = (root, root.upper, root.stack)
                newest = self._files(stack[0]) if stack else f"/proc/self/fd/{root.base[0]}"
                upper = self._new_upper(newest, read_only=not stack and not root.writable)
                try:
                    self._overlay(root, list(stack), upper)
                except OSError:
                    self._discard(upper)
                    raise
                root.stack = list(stack)
                done.append(before)
                faults.point("init: restored one")
        except OSError:
            for root, upper, stack in reversed(done):
                self._uncover(root)
                root.upper, root.stack = upper, stack
                root.born = _attributes(self._files(upper), self.markers)
            raise
        return {root.path: root.upper for root, _, _ in done}

    def refresh(self) -> None:
        """Show what the host has changed below.

        Overlayfs remembers what a name led to, or that there was none, and does not ask the
        filesystem below again. A remount that changes nothing lets go of what no process has open
        (reconfigure_super in the kernel's fs/super.c calls shrink_dcache_sb). Raises OSError.
        """
        for root in self.roots.values():
            # from the top down: what is remembered above holds what is remembered below
            linux.mount("none", root.path, None, linux.MS_REMOUNT)
            if root.base_overlay:
                below = f"/proc/self/fd/{root.base[0]}"
                linux.mount("none", below, None, linux.MS_REMOUNT | linux.MS_RDONLY)

    def tidy(self, paths: Iterable[str]) -> None:
        """Take old mounts away that nobody uses. All processes must be stopped."""
        for path in paths:
            root = self.roots[path]
            if root.generations < 2:
                continue
            top = linux.open_tree(path, linux.OPEN_TREE_CLOEXEC)
            try:
                linux.move_mount(top, -100, _PARKING)
                try:
                    while root.generations > 1 and self._take_away(root, -2):
                        pass
                finally:
                    linux.move_mount(top, -100, path)
            finally:
                os.close(top)

    def _take_away(self, root: Root, which: int) -> bool:
        """Unmount what is on top, if nobody uses it; its last reference goes in `relax`."""
        copy = -1
        try:
            # taking down a filesystem takes time; a copy of the mount keeps it for now
            copy = linux.open_tree(root.path, linux.OPEN_TREE_CLONE | linux.OPEN_TREE_CLOEXEC)
            linux.umount(root.path)
        except OSError:
            if copy >= 0:
                os.close(copy)
            return False
        self._closing.append(copy)
        self._forget(root, which)
        return True

    @staticmethod
    def _forget(root: Root, which: int) -> None:
        """A mount is gone; its id may be given to another."""
        root.generations -= 1
        id = root.pinned.pop(which)
        root.live = {key: inode for key, inode in root.live.items() if key[0] != id}

    def relax(self) -> None:
        """Off everybody's path: let go of filesystems that are no longer mounted."""
        for fd in self._closing:
            os.close(fd)
        self._closing.clear()

    # -- inside -----------------------------------------------------------------------------

    def _files(self, layer: str) -> str:
        return f"{self._directory}/{layer}/files"

    def _new_upper(self, like: str, *, read_only: bool = False) -> str:
        """Make the directories of an empty layer; its root bears the attributes of another."""
        id = new_layer_id()
        try:
            os.mkdir(f"{self._directory}/{id}", 0o700)
            os.mkdir(f"{self._directory}/{id}/work", 0o700)
            os.mkdir(self._files(id), 0o700)
            source, target = os.fsencode(like), os.fsencode(self._files(id))
            copy_attributes(source, target, self.markers, read_only=read_only)
        except OSError:
            self._discard(id)
            raise
        return id

    def _discard(self, layer: str) -> None:
        with contextlib.suppress(OSError):
            remove(os.fsencode(f"{self._directory}/{layer}"))

    def _overlay(self, root: Root, stack: Sequence[str], upper: str) -> None:
        """Mount over whatever is at the root, and take along what must stay on top of it."""
        lower = [f"{layer}/files" for layer in stack]
        lower += [f"/proc/self/fd/{fd}" for fd in root.base]
        data = [f"lowerdir={':'.join(lower)}", f"upperdir={upper}/files"]
        data += [f"workdir={upper}/work", *self._options]
        # short names: all must fit into one page (mount(2))
        os.fchdir(self.layers)
        try:
            linux.mount("timetravel", root.path, "overlay", 0, ",".join(data))
        finally:
            os.chdir("/")
        root.generations += 1
        root.pinned.append(held.mount_id(root.path))
        moved: list[Child] = []
        try:
            for child in root.children:
                self._attach(root, child)
                moved.append(child)
        except OSError:
            self._uncover(root)
            raise
        root.upper = upper
        root.born = _attributes(self._files(upper), self.markers)

    def _attach(self, root: Root, child: Child) -> None:
        place = f"{root.path}/{child.path}"
        if not os.path.lexists(place):
            if child.is_directory:
                os.makedirs(place, exist_ok=True)
            else:
                os.makedirs(os.path.dirname(place), exist_ok=True)
                os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o600))
        linux.move_mount(child.fd, -100, place)

    def _uncover(self, root: Root) -> None:
        """Take the newest mount of a root away again; its children go back to the one below."""
        top = linux.open_tree(root.path, linux.OPEN_TREE_CLOEXEC)
        try:
            linux.move_mount(top, -100, _PARKING)
        finally:
            os.close(top)
        for child in root.children:
            self._attach(root, child)
        linux.umount(_PARKING, linux.MNT_DETACH)
        self._forget(root, -1)


def _attributes(path: str, markers: Markers) -> tuple[object, ...]:
    """What of a root directory itself can be changed without an entry of it."""
    st = os.stat(path)
    attributes: tuple[object, ...] = ()
    with contextlib.suppress(OSError):
        attributes = tuple(sorted(markers.visible_attributes(os.fsencode(path)).items()))
    return (st.st_mode, st.st_uid, st.st_gid, st.st_mtime_ns, attributes)


def describe(switched: Mapping[str, Switched]) -> dict[str, Any]:
    """As JSON, for the supervisor."""
    return {path: vars(one) for path, one in switched.items()}
