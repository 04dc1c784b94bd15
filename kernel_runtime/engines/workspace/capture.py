"""Taking a snapshot: bring the remembered tree up to date, write what is new."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Final

from kernel_runtime.engines.workspace import faults
from kernel_runtime.engines.workspace.access import Access
from kernel_runtime.engines.workspace.content import ContentReader
from kernel_runtime.engines.workspace.errors import WorkspaceCaptureFailed
from kernel_runtime.engines.workspace.index import load_index, save_index
from kernel_runtime.engines.workspace.model import LeftOut, Snapshot
from kernel_runtime.engines.workspace.reading import FileReader
from kernel_runtime.engines.workspace.rules import Rules, compile_rules
from kernel_runtime.engines.workspace.scan import (
    ANOTHER_ROOT,
    OWN_DATA,
    Scanner,
    open_below,
    stale_names,
)
from kernel_runtime.engines.workspace.snapshots import (
    Manifest,
    build_trees,
    notes_below,
    write_manifest,
)
from kernel_runtime.engines.workspace.state import DirState, Key, Known
from kernel_runtime.engines.workspace.watch import (
    MountsChanged,
    Noticed,
    Overflow,
    Watch,
    WatchRefused,
)
from kernel_runtime.later import dataclass
from kernel_runtime.store.blobs import BlobError, BlobStore, BlobStoreFull, Digest, digest_of

_SAVE_INDEX_FROM: Final = 1000

Dirty = frozenset[tuple[int, int]]


@dataclass
class Root:
    """One captured directory. state: None before the first capture, or if it is not there."""

    path: Path
    state: DirState | None = None
    rules: Rules | None = None


@dataclass
class Capturer:
    """Holds all that lasts from one capture to the next. One thread at a time."""

    roots: list[Root]
    store: BlobStore
    state_dir: Path
    patterns: tuple[str, ...]
    copy_limit: int
    access: Access = field(default_factory=Access)
    inodes: dict[int, Known] = field(default_factory=dict)
    watch: Watch | None = None
    watch_refused: str = ""
    last: Snapshot | None = None
    manifest: Manifest | None = None
    """Of the last snapshot."""
    _young: list[tuple[Known, int]] = field(default_factory=list)
    _complete: bool = False
    _loaded: bool = False

    def __post_init__(self) -> None:
        self.content = ContentReader(self.store)
        paths = b"\0".join(os.fsencode(root.path) for root in self.roots)
        self._index = self.state_dir / f"index-{digest_of(paths)[:16]}.json"
        self._lease = self.store.lease(f"workspace-{uuid.uuid4().hex}")

    def capture(
        self, patterns: tuple[str, ...], dirty: Dirty, label: str, *, anew: bool = True
    ) -> Snapshot:
        """Take a snapshot under these rules; anew: else the last one does where nothing has changed
        since. Raises WorkspaceCaptureFailed."""
        begin = time.perf_counter()
        stored = self.store.put_bytes
        try:
            with self.store.adding():
                self._load()
                follows = self._complete
                how, changed = self._update(patterns, dirty)
                if not anew and follows and not changed and self.last and self._is_last(patterns):
                    return self.last
                manifest = self._write(patterns)
                self._lease.set([Digest(manifest.id)])
        except (OSError, BlobError) as cause:
            # Notices that were read are gone: only a full scan can be trusted now.
            self._complete = False
            if isinstance(cause, BlobStoreFull):
                self._forget_everything()
            raise WorkspaceCaptureFailed(self._told(cause)) from cause
        self._complete = True
        self.manifest = manifest
        self.last = Snapshot(
            id=manifest.id,
            label=label,
            files=manifest.files,
            directories=manifest.directories,
            bytes=manifest.bytes,
            changed=changed,
            copied_bytes=self.store.put_bytes - stored,
            excluded=manifest.excluded,
            left_out=manifest.left_out,
            how=how,
            took_s=time.perf_counter() - begin,
        )
        if how == "scanned" and changed >= _SAVE_INDEX_FROM:
            self.save()
        return self.last

    def scanner(self, rules: Rules, dirty: Dirty = frozenset()) -> Scanner:
        """The means to look at one root."""
        reader = FileReader(self.store, self.content, self.access, self.copy_limit)
        return Scanner(reader, self.access, rules, self.inodes, dirty, self.watch)

    def rules_for(self, root: Root, patterns: Sequence[str]) -> Rules:
        """Rules of a root; the store, the journal and other roots are left out always."""
        identities: dict[tuple[int, int], str] = {}
        apart = [(other.path, ANOTHER_ROOT) for other in self.roots if other is not root]
        for path, why in (*apart, (self.store.path, OWN_DATA), (self.state_dir, OWN_DATA)):
            with contextlib.suppress(OSError):
                found = os.stat(path)
                identities[found.st_dev, found.st_ino] = why
        known = root.rules
        if (
            known is not None
            and known.patterns == tuple(patterns)
            and known.identities == identities
        ):
            return known
        return compile_rules(patterns, root.path, identities)

    def save(self) -> None:
        """Keep what is known of the files for the next run; failing costs only time then."""
        with contextlib.suppress(OSError):
            save_index(self._index, self.inodes.values(), self.store)

    def close(self) -> None:
        """End the helper process, the watches and the lease. The second call does nothing."""
        if self._complete:
            with contextlib.suppress(Overflow):
                self._notices()
            self.save()
        self._complete = False
        self.access.close()
        if self.watch is not None:
            self.watch.close()
            self.watch = None
        self._lease.close()

    # -- inside -------------------------------------------------------------------------------
    def _told(self, cause: Exception) -> str:
        """What went wrong; a root that could not be opened is called by its whole path."""
        name = getattr(cause, "filename", None)
        if isinstance(cause, OSError) and isinstance(name, bytes):
            for root in self.roots:
                if os.path.basename(os.fsencode(root.path)) == name:
                    return f"{root.path}: {cause.strerror}"
        return str(cause)

    def _forget_everything(self) -> None:
        """Give the room of a capture back that did not fit, and rely on nothing it stored."""
        for root in self.roots:
            root.state = None
        self.inodes.clear()
        self._loaded = False
        self.last = self.manifest = None
        if self.watch is not None:
            self.watch.close()
            self.watch = None
        self.store.discard_added()

    def _load(self) -> None:
        if not self._loaded:
            self.inodes = load_index(self._index, self.store)
            self._loaded = True

    def _update(self, patterns: tuple[str, ...], dirty: Dirty) -> tuple[str, int]:
        """Bring all roots up to date; how that was done, and the number of changes."""
        noticed: Noticed | None = None
        if self.watch is not None and self._complete:
            with contextlib.suppress(Overflow):
                noticed = self._notices()
        changed = 0
        how = "watched"
        by_notices: list[Root] = []
        relinked: dict[tuple[int, int], tuple[Key, int]] = {}
        for root in self.roots:
            with self._open(root) as fd:
                if fd is None:
                    changed += root.state is not None
                    root.state = None
                    continue
                rules = self.rules_for(root, patterns)
                same = root.state is not None and root.rules == rules and _is_at(root.state, fd)
                scanner = self.scanner(rules, dirty)
                visited = False
                if same and noticed is not None and root.state is not None and self._watched(root):
                    visited = self._visit(scanner, root.state, fd, noticed, dirty)
                if not visited:
                    how = "scanned"
                    self._scan(root, scanner, rules, fd, fresh=not same)
                else:
                    by_notices.append(root)
                changed += self._done(scanner)
                relinked |= scanner.relinked
        for root in by_notices:
            changed += self._other_names(root, relinked, dirty)
        return how, changed

    def _done(self, scanner: Scanner) -> int:
        """Take over what a scanner found; the number of changes."""
        self._forget_inodes(scanner.gone)
        self._young += scanner.reader.young
        return scanner.changed

    def _other_names(
        self, root: Root, relinked: dict[tuple[int, int], tuple[Key, int]], dirty: Dirty
    ) -> int:
        """Look at names of files of which only another name, in any root, was reported."""
        state, rules = root.state, root.rules
        stale = {} if state is None else stale_names(state, relinked)
        if not stale or state is None or rules is None:
            return 0
        with self._open(root) as fd:
            if fd is None:
                return 0  # gone since: that is for the next capture to find
            scanner = self.scanner(rules, dirty)
            if not self._visit(scanner, state, fd, stale, frozenset()):
                self._scan(root, scanner, rules, fd, fresh=False)
            return self._done(scanner)

    def _notices(self) -> Noticed:
        """What was reported since the last capture. Raises Overflow.

        What was read too soon after its last change, and not reported since, is trusted from
        now on, if the notices go on long enough after that change. Names that were reported
        are read again before anyone relies on them.
        """
        now = time.monotonic_ns()  # taken first: what is written later may not be reported yet
        if self.watch is None:
            self._young = []
            return {}
        try:
            noticed = self.watch.drain()
        except MountsChanged as changed:
            self._trust_older(changed.noticed, now)  # files stay who they are below a mount
            raise
        self._trust_older(noticed, now)
        return noticed

    def _trust_older(self, noticed: Noticed, now: int) -> None:
        reported = {
            id(state.files[name])
            for state, names in noticed.items()
            for name in names
            if name in state.files
        }
        waiting: list[tuple[Known, int]] = []
        for known, ready in self._young:
            if id(known) in reported:
                continue
            if now >= ready:
                known.trusted = True
            else:
                waiting.append((known, ready))
        self._young = waiting

    def _watched(self, root: Root) -> bool:
        watch, state = self.watch, root.state
        if watch is None or state is None:
            return False
        return watch.watches(state) or state in watch.unwatched

    def _forget_inodes(self, gone: list[DirState]) -> None:
        """Only now: a directory that was moved is known by its files' inodes until here."""
        for top in gone:
            for state in top.walk():
                for known in state.files.values():
                    if self.inodes.get(known.key[1]) is known:
                        del self.inodes[known.key[1]]

    def _scan(self, root: Root, scanner: Scanner, rules: Rules, fd: int, *, fresh: bool) -> None:
        if self.watch is None and not self.watch_refused:
            self._start_watching(fd)
            scanner.watcher = self.watch
        old = root.state
        state = scanner.new_directory(b"", None, fd) if fresh or old is None else old
        try:
            scanner.scan(state, fd)
        except WatchRefused as cause:
            self._stop_watching(str(cause))
            scanner.watcher = None
            scanner.scan(state, fd)
        if old is not None and old is not state:
            scanner.gone.append(old)
            if self.watch is not None:
                for below in old.walk():
                    self.watch.forget(below)
        root.state, root.rules = state, rules

    def _visit(
        self,
        scanner: Scanner,
        top: DirState,
        root_fd: int,
        noticed: Noticed,
        dirty: Dirty,
    ) -> bool:
        """Look at the names that were reported, and at files mapped by a process.

        Returns False if watching had to be given up on the way: then all must be scanned.
        """
        todo = {state: set(names) for state, names in noticed.items()}
        if dirty:
            for state in top.walk():
                for name, known in state.files.items():
                    if known.key[:2] in dirty:
                        todo.setdefault(state, set()).add(name)
        unwatched = set() if self.watch is None else self.watch.unwatched
        for state in unwatched:
            todo.setdefault(state, set())
        placed = [(state.path(), state) for state in todo if _root_of(state) is top]
        for parts, state in sorted(placed, key=lambda item: (len(item[0]), item[0])):
            if _is_detached(state):
                continue
            try:
                fd = open_below(self.access, root_fd, parts)
            except OSError:
                continue  # a directory above it was reported too
            try:
                if not _is_at(state, fd):
                    continue
                if state in unwatched:
                    scanner.scan(state, fd, len(parts))
                    continue
                for name in sorted(todo[state]):
                    faults.point("visit")
                    scanner.visit(state, fd, name, len(parts))
                scanner.refresh(state, fd)
            except WatchRefused as cause:
                self._stop_watching(str(cause))
                scanner.watcher = None
                return False
            finally:
                os.close(fd)
        return True

    def _is_last(self, patterns: tuple[str, ...]) -> bool:
        """Whether a snapshot would have what the last one has, where nothing has changed."""
        known = all(root.state is None or root.state.tree is not None for root in self.roots)
        return known and self.manifest is not None and self.manifest.rules == patterns

    def _write(self, patterns: tuple[str, ...]) -> Manifest:
        left_out: list[LeftOut] = []
        for number, root in enumerate(self.roots):
            if root.state is None:
                left_out.append(LeftOut(number, b"", "the directory is not there", False))
                continue
            if root.state.tree is None:
                build_trees(self.store, root.state)
            left_out += notes_below(number, root.state)
        roots = [(root.path, root.state) for root in self.roots]
        return write_manifest(self.store, roots, patterns, left_out)

    @contextlib.contextmanager
    def _open(self, root: Root) -> Iterator[int | None]:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            fd = os.open(root.path, flags)
        except (FileNotFoundError, NotADirectoryError):
            yield None
            return
        except PermissionError:
            fd = self._open_by_parent(root.path)
        try:
            yield fd
        finally:
            os.close(fd)

    def _open_by_parent(self, path: Path) -> int:
        """Open a root that its owner may not read. Raises OSError."""
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return self.access.open_dir(parent, os.fsencode(path.name))
        finally:
            os.close(parent)

    def _start_watching(self, fd: int) -> None:
        try:
            self.watch = Watch.on(fd, [root.path for root in self.roots])
        except WatchRefused as cause:
            self.watch_refused = str(cause)

    def _stop_watching(self, reason: str) -> None:
        if self.watch is not None:
            self.watch.close()
        self.watch, self.watch_refused = None, reason


def _is_at(state: DirState, fd: int) -> bool:
    found = os.fstat(fd)
    return state.key[:2] == (found.st_dev, found.st_ino)


def _root_of(state: DirState) -> DirState:
    while state.parent is not None:
        state = state.parent
    return state


def _is_detached(state: DirState | None) -> bool:
    while state is not None:
        if state.detached:
            return True
        state = state.parent
    return False
