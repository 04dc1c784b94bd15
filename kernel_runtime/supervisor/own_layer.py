"""What cells change in a container's own writable layer where nothing captures it: named, not held.

Without namespaces the root of a container is one overlay, whose upper directory is not to be seen
from inside. So what has changed since the session started is told by names and change times (ctime,
which no program sets), and looked at only where this process may write: next to nothing for an
ordinary user, nearly everything for root. What Linux keeps or what programs meet in (`HOST_PATHS`)
goes back in no session, and is left out; so are caches.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from kernel_runtime.engines.overlay.plan import HOST_PATHS, read_mounts
from kernel_runtime.engines.workspace.names import printable
from kernel_runtime.timeline.caches import is_cache
from kernel_runtime.timeline.model import Note

KIND: Final = "file of the container"
_FILESYSTEMS: Final = ("overlay", "fuse.fuse-overlayfs")
_MOST: Final = 100_000
"""Paths that each checkpoint looks at, at some 10 microseconds each."""

_MOST_AT_FIRST: Final = 500_000
_NAMED: Final = 50
_Facts = tuple[int, ...]
"""Of a directory mode and owner, of all else its change time."""


class OwnLayer:
    """What has changed in it since this was made, outside of some directories."""

    def __init__(self, apart: Iterable[Path]) -> None:
        """apart: what is captured, or is no matter of the container's."""
        mounts = read_mounts(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
        self._apart = {*HOST_PATHS, *(os.path.realpath(path) for path in apart)}
        self._apart |= {mount.path for mount in mounts if mount.path != "/"}
        roots = [mount.fstype for mount in mounts if mount.path == "/"]
        self._before: dict[str, _Facts] = {}
        self._directories: list[str] = []
        self._problem = ""
        if roots and roots[-1] in _FILESYSTEMS:
            self._start()

    def _start(self) -> None:
        waiting = [("/", os.lstat("/"))]
        looked = 0
        while waiting:
            top, its = waiting.pop()
            is_ours = _may_write(top, its)
            if is_ours:
                self._directories.append(top)
            for path, found in self._entries(top):
                looked += 1
                if is_ours or _may_write(path, found):
                    self._before[path] = _facts(found)
                if stat.S_ISDIR(found.st_mode):
                    waiting.append((path, found))
            if len(self._before) > _MOST or looked > _MOST_AT_FIRST:
                self._problem = "not looked at: there are too many files that cells may change"
                self._before, self._directories = {}, []
                return

    def renew(self) -> bool:
        """Whether anything has changed since this was made, or since this was asked last. Where
        there is too much to look at, or nothing can be told, it has."""
        if self._problem or not self._directories:
            return True
        now, directories = self._now()
        before, self._before = self._before, now
        # what is in a directory that is gone is gone with it
        self._directories = [top for top in directories if top == "/" or top in now]
        paths = {path for path, facts in now.items() if before.get(path) != facts}
        return not all(is_cache(path) for path in paths | (before.keys() - now.keys()))

    def changes(self) -> list[Note]:
        """Each file or directory that is made, changed or deleted; a tree counts as one."""
        if self._problem:
            return [Note(KIND, "/", self._problem)]
        if not self._directories and not self._before:
            return []
        now, _ = self._now()
        told: dict[str, str] = {}
        before = self._before
        for path, facts in now.items():
            if facts != before.get(path) and not is_cache(path):
                told[path] = "made" if path not in before else "changed"
        for path in self._before.keys() - now.keys():
            if not is_cache(path):
                told[path] = "deleted"
        tops = {
            path: what
            for path, what in told.items()
            if what == "changed" or told.get(os.path.dirname(path)) != what
        }
        notes = [
            Note(KIND, printable(os.fsencode(path)), self._detail(path, tops[path], now))
            for path in sorted(tops)[:_NAMED]
        ]
        if len(tops) > _NAMED:
            notes.append(Note(KIND, f"{len(tops) - _NAMED} more", "made, changed or deleted"))
        return notes

    def _detail(self, path: str, what: str, now: Mapping[str, _Facts]) -> str:
        if what == "deleted":
            return what
        whole = [path]
        if what == "made":  # a directory is told with all that is in it
            whole += [one for one in now if one.startswith(f"{path}/")]
        files = sum(len(now[one]) == 1 for one in whole)
        newest = 0
        for one in whole:
            with contextlib.suppress(OSError):
                newest = max(newest, os.lstat(one).st_ctime_ns)
        at = datetime.fromtimestamp(newest / 1e9, timezone.utc).isoformat(" ", "milliseconds")
        count = f" with {files:,} files" if what == "made" and len(now[path]) > 1 else ""
        return f"{what}{count}, at {at[:-6]} UTC"

    def _now(self) -> tuple[dict[str, _Facts], list[str]]:
        """What there is now, and the directories that were looked into."""
        found: dict[str, _Facts] = {}
        seen = set(self._directories)
        waiting = list(self._directories)
        while waiting:
            for path, its in self._entries(waiting.pop()):
                found[path] = facts = _facts(its)
                is_new = len(facts) > 1 and facts != self._before.get(path)
                if is_new and path not in seen:
                    seen.add(path)
                    waiting.append(path)
        for path in self._before.keys() - found.keys():  # files in what others own
            with contextlib.suppress(OSError):
                found[path] = _facts(os.lstat(path))
        return found, list(seen)

    def _entries(self, top: str) -> list[tuple[str, os.stat_result]]:
        found = []
        with contextlib.suppress(OSError), os.scandir(top) as entries:
            for entry in entries:
                if entry.path not in self._apart:
                    with contextlib.suppress(FileNotFoundError):
                        found.append((entry.path, entry.stat(follow_symlinks=False)))
        return found


def stays(then: Iterable[Note], now: Iterable[Note]) -> list[str]:
    """What a restore from the one to the other leaves as it is, in words."""
    before = {note.subject: note.detail for note in then if note.kind == KIND}
    after = {note.subject: note.detail for note in now if note.kind == KIND}
    return [
        f"stays as it is: {KIND}: {path}: {after.get(path, 'as it was when this kernel started')}"
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    ]


def _facts(found: os.stat_result) -> _Facts:
    if stat.S_ISDIR(found.st_mode):
        return found.st_mode, found.st_uid, found.st_gid
    return (found.st_ctime_ns,)


def _may_write(path: str, found: os.stat_result) -> bool:
    """Or may give himself the right to."""
    if stat.S_ISLNK(found.st_mode):
        return False
    if os.geteuid() in (0, found.st_uid):
        return True
    # what an access list gives is in the bits of the group
    return bool(found.st_mode & 0o022) and os.access(path, os.W_OK)
