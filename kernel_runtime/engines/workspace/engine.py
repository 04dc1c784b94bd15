"""The workspace engine: snapshots of directories of the host, restored in place.

Called by the supervisor, from a worker thread, in the host's namespaces; one capture or
restore at a time in each engine. Several engines may share a store, and even a directory.

Keeps:  content, mode, owner where permitted, mtime in nanoseconds, extended attributes, holes,
        symlinks, hard links within the workspace, fifos, empty directories, any name.
Loses:  atime, ctime, inode numbers; sockets and devices, which it never touches.
Lists:  every path that it could not hold, with the reason.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from kernel_runtime.engines.workspace.anchor import Anchor
from kernel_runtime.engines.workspace.aside import Aside
from kernel_runtime.engines.workspace.capture import Capturer, Root
from kernel_runtime.engines.workspace.check import Findings, check
from kernel_runtime.engines.workspace.diff import differences
from kernel_runtime.engines.workspace.errors import (
    SnapshotUnknown,
    WorkspaceRestoreRefused,
    WorkspaceUnsupported,
)
from kernel_runtime.engines.workspace.estimate import Estimate, estimate
from kernel_runtime.engines.workspace.export import read_content, write_copy
from kernel_runtime.engines.workspace.linux import birth_time_ns
from kernel_runtime.engines.workspace.locks import locked_roots
from kernel_runtime.engines.workspace.model import (
    ALL_FILES,
    Change,
    Entry,
    LeftOut,
    Part,
    RecoverResult,
    RestorePlan,
    RestoreResult,
    Snapshot,
)
from kernel_runtime.engines.workspace.operations import Operations, join
from kernel_runtime.engines.workspace.planner import Planner
from kernel_runtime.engines.workspace.protect import Protection, absent_paths, documents_of, inside
from kernel_runtime.engines.workspace.recovery import recover, was_committed
from kernel_runtime.engines.workspace.restoration import Restoration, paths_in
from kernel_runtime.engines.workspace.rules import DEFAULT_EXCLUDES
from kernel_runtime.engines.workspace.snapshots import Manifest, reachable, read_manifest
from kernel_runtime.engines.workspace.staging import Stager
from kernel_runtime.engines.workspace.state import Known
from kernel_runtime.engines.workspace.tree import Reader, TreeDamaged
from kernel_runtime.store.blobs import BlobError, BlobStore, Digest, SweepResult

_COLLECT_AFTER: Final = 50


class WorkspaceEngine:
    """Captures and restores the given roots. Methods are thread safe.

    journal_dir: where restores at work are recorded, and what is known of the files between
    runs; on a disk that survives a crash. exclude: see rules.py. copy_limit: larger files
    (bytes) are reflinked or hard-linked into the store instead of copied. document: the
    running notebook's file; set the attribute when it is renamed, and `former` to the paths that
    it had: nothing is put there. keep_documents: a restore leaves it alone, or every *.ipynb while
    document is None. mapped_files: asked at each look at the files, gives (st_dev, st_ino) of those
    that a process of the session has mapped shared and writable: they are read again whatever their
    stat says. at_rest: an attribute, None or whether the session was at rest at a time (nanoseconds
    since the epoch): a file that was made and changed last then is another program's, and a restore
    to before it leaves it.
    """

    name = "workspace"

    def __init__(
        self,
        roots: Sequence[Path],
        store: BlobStore,
        *,
        journal_dir: Path,
        exclude: Sequence[str] = DEFAULT_EXCLUDES,
        copy_limit: int = 1 << 30,
        keep_documents: bool = True,
        document: Path | None = None,
        mapped_files: Callable[[], Iterable[tuple[int, int]]] = tuple,
    ) -> None:
        """Looks at nothing yet. Raises WorkspaceUnsupported on a system other than Linux."""
        if not sys.platform.startswith("linux"):
            raise WorkspaceUnsupported(sys.platform)
        self.store = store
        self.journal_dir = journal_dir
        self.exclude = tuple(exclude)
        self.keep_documents = keep_documents
        self.document = document
        self.mapped_files = mapped_files
        self.former: Sequence[Path] = ()
        self.at_rest: Callable[[int], bool] | None = None
        self._lock = threading.RLock()
        self._released = 0
        self._read: Manifest | None = None
        journal_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        absolute = [Root(Path(os.path.abspath(root))) for root in roots]
        self._capturer = Capturer(absolute, store, journal_dir, self.exclude, copy_limit)

    # -- capturing ----------------------------------------------------------------------------

    @property
    def roots(self) -> tuple[Path, ...]:
        """The captured directories."""
        return tuple(root.path for root in self._capturer.roots)

    @property
    def scanning_because(self) -> str:
        """Why captures list every directory instead of being notified; "" if they do not."""
        return self._capturer.watch_refused

    def leaves_out(self, root: int, path: bytes) -> bool:
        """Whether the rules leave a path out, or a directory that it is in."""
        rules = self._capturer.rules_for(self._capturer.roots[root], self.exclude)
        names = path.split(b"/")
        return any(rules.excludes(b"/".join(names[:end])) for end in range(1, len(names) + 1))

    def estimate(self, max_files: int = 200_000, max_bytes: int = 10 << 30) -> Estimate:
        """How much a first capture would read, counted no further than these limits."""
        with self._lock:
            capturer = self._capturer
            rules = [capturer.rules_for(root, self.exclude) for root in capturer.roots]
            return estimate(self.roots, rules, max_files, max_bytes)

    def capture(
        self,
        *,
        label: str = "",
        rules_of: str | None = None,
    ) -> Snapshot:
        """Take a snapshot, kept until `release`. It is durable after `store.flush()`, not before.

        rules_of: use the rules of this snapshot, as a safety checkpoint before restoring it must.
        Raises WorkspaceCaptureFailed.
        """
        with self._lock, locked_roots(self.roots, exclusive=False):
            patterns = self.exclude
            if rules_of is not None:
                patterns = self._manifest(rules_of).rules
            snapshot = self._capturer.capture(patterns, frozenset(self.mapped_files()), label)
            self.store.pin(Digest(snapshot.id))
            return snapshot

    # -- looking ------------------------------------------------------------------------------

    def manifest(self, snapshot_id: str) -> Iterator[tuple[int, bytes, Entry]]:
        """All paths of a snapshot: number of the root, path, entry. Raises SnapshotUnknown."""
        manifest = read_manifest(self.store, snapshot_id)
        reader = Reader.of(self.store)
        with _readable(snapshot_id):
            for number, (_, entry) in enumerate(manifest.roots):
                if entry is not None:
                    for path, below in reader.walk(entry.tree):
                        yield number, path, below

    def recorded_roots(self, snapshot_id: str) -> list[Path]:
        """The directories that a snapshot is of. Raises SnapshotUnknown."""
        return [path for path, _ in self._manifest(snapshot_id).roots]

    def left_out(self, snapshot_id: str) -> tuple[LeftOut, ...]:
        """What a snapshot does not hold, or not fully. Raises SnapshotUnknown."""
        return read_manifest(self.store, snapshot_id).left_out

    def diff(self, a: str, b: str | None) -> list[Change]:
        """Changes from a to b; if b is None, what a restore of a would change now.

        Raises SnapshotUnknown, WorkspaceCaptureFailed.
        """
        if b is None:
            return self._differences(self._look(a).id, a)
        return self._differences(a, b)

    def current_changes(self, snapshot_id: str) -> list[Change]:
        """What has changed in the directory since a snapshot."""
        return self._differences(snapshot_id, self._look(snapshot_id).id)

    def read_file(self, snapshot_id: str, path: bytes, root: int = 0) -> Iterator[bytes]:
        """The content of one file of a snapshot, piece by piece. Raises SnapshotUnknown,
        FileNotFoundError, BlobError."""
        with _readable(snapshot_id):
            yield from read_content(self.store, self._entry(snapshot_id, path, root))

    def read_beginning(
        self, snapshot_id: str, path: bytes, root: int, most: int
    ) -> tuple[bytes, int]:
        """The first bytes of one file of a snapshot, and its size. Raises as read_file."""
        with _readable(snapshot_id):
            entry = self._entry(snapshot_id, path, root)
            data = bytearray()
            for piece in read_content(self.store, entry):
                data += piece
                if len(data) >= most:
                    break
            return bytes(data[:most]), entry.size

    def export(self, snapshot_id: str, path: bytes, destination: Path, root: int = 0) -> None:
        """Write one file of a snapshot to a new file. Raises FileExistsError and as read_file."""
        with _readable(snapshot_id):
            write_copy(self.store, self._entry(snapshot_id, path, root), destination)

    # -- restoring ----------------------------------------------------------------------------

    def plan_restore(
        self,
        snapshot_id: str,
        *,
        include_documents: bool = False,
        allow_missing: bool = False,
        part: Part = ALL_FILES,
    ) -> RestorePlan:
        """What a restore would do, checked as far as can be; changes nothing in the roots.

        include_documents: roll notebooks back too. allow_missing: leave files whose content
        the store has lost as they are, instead of refusing. part: which files are meant; all else
        stays. Raises SnapshotUnknown, WorkspaceCaptureFailed; what would stop the restore is in the
        plan's problems.
        """
        with self._lock:
            present = self._look(snapshot_id)
            manifest = self._manifest(snapshot_id)
            with _readable(snapshot_id), self._anchors() as anchors:
                reader = Reader.of(self.store)
                operations, chosen = self._operations(manifest, reader, include_documents, part)
                found = check(self.store, reader, operations, anchors)
            problems = list(found.problems)
            if not allow_missing:
                problems += [(path, why) for _, path, why in found.unreadable]
            kept = [*operations.kept, *_unreadable(found, allow_missing)]
            changes = self._differences(present.id, snapshot_id)
            return RestorePlan(
                manifest.id, present.id,
                tuple(one for one in changes if chosen[one.root].is_chosen(one.path)),
                tuple(kept), tuple(problems), tuple(found.warnings), present.excluded,
                found.bytes_to_write, include_documents, allow_missing, part,
            )  # fmt: skip

    def restore(
        self,
        plan: RestorePlan,
        *,
        foreign: Snapshot | None = None,
        committed: Callable[[], None] = lambda: None,
    ) -> RestoreResult:
        """Carry a plan out.

        committed: called once when it will not be undone any more, and `was_committed` would still
        say so; at the end where nothing had to be done.

        foreign: the safety snapshot, which tells what other programs wrote since. Take it just
        before, with rules_of=plan.snapshot_id: it holds all that is replaced. Without it, what
        counts as seen is the state when the plan was made, and nothing keeps that. Whatever is
        newer is kept aside and listed. Raises WorkspaceRestoreRefused before anything was
        changed, WorkspaceRestoreFailed after everything was put back.
        """
        begin = time.perf_counter()
        with self._lock, locked_roots(self.roots, exclusive=True):
            seen = plan.present_id if foreign is None else foreign.id
            last = self._capturer.last
            if last is None or last.id != seen:
                raise WorkspaceRestoreRefused([(b"", "the plan is from before the last capture")])
            manifest = self._manifest(plan.snapshot_id)
            with _readable(plan.snapshot_id):
                return self._restore(plan, manifest, begin, committed)

    def was_committed(self) -> bool:
        """Before `recover`: whether it will finish a restore that a crash interrupted, or undo it.
        Raises OSError."""
        with self._lock:
            return was_committed(self.journal_dir, self.roots)

    def recover(self) -> RecoverResult | None:
        """At the start: undo or finish restores that a crash interrupted; None if none was."""
        with self._lock:
            results = recover(self.journal_dir, self.roots)
        if not results:
            return None
        problems = tuple(problem for result in results for problem in result.problems)
        worst = next((one for one in results if one.outcome == "partly"), results[-1])
        return RecoverResult(worst.outcome, worst.snapshot_id, problems)

    # -- the store ----------------------------------------------------------------------------

    def release(self, snapshot_ids: Iterable[str]) -> None:
        """These are not wanted any more. Their room is free after the next `collect_garbage`,
        which follows by itself after every 50 releases."""
        for snapshot_id in snapshot_ids:
            self.store.unpin(Digest(snapshot_id))
            self._released += 1
        if self._released >= _COLLECT_AFTER:
            self.collect_garbage()

    def collect_garbage(self, also_keep: Iterable[str] = ()) -> SweepResult:
        """Delete what no snapshot needs that was not released, of any engine in this store.

        also_keep: blobs in the same store that are not the workspace's. Takes about a second
        for each 100,000 files that differ among the snapshots. Raises SnapshotUnknown, and
        deletes nothing, if a manifest that is wanted cannot be read.
        """
        self._released, self._read = 0, None
        with self.store.collecting() as (roots, before_ns):
            wanted, unread = reachable(self.store, roots)
            if unread:
                raise SnapshotUnknown(unread[0][0], unread[0][1])
            wanted.update(also_keep)
            return self.store.sweep(wanted, before_ns=before_ns)

    # -- life ---------------------------------------------------------------------------------

    def prepare(self) -> Snapshot:
        """Read everything once, so that the first cell does not pay for it."""
        return self.capture(label="prepare")

    def close(self) -> None:
        """Write down what is known of the files; end watches and the helper process."""
        with self._lock:
            self._capturer.close()

    # -- inside -------------------------------------------------------------------------------

    def _restore(
        self,
        plan: RestorePlan,
        manifest: Manifest,
        begin: float,
        committed: Callable[[], None],
    ) -> RestoreResult:
        reader = Reader.of(self.store)
        self._make_missing_roots(manifest, plan)
        with self._anchors() as anchors:
            operations, protections = self._operations(
                manifest, reader, plan.include_documents, plan.part
            )
            found = check(self.store, reader, operations, anchors)
            problems = list(found.problems)
            if plan.allow_missing:
                left = {
                    id(place)
                    for place, path, _ in found.unreadable
                    if path == join(place.parent, place.name)
                }
                operations.places = [p for p in operations.places if id(p) not in left]
            else:
                problems += [(path, why) for _, path, why in found.unreadable]
            if problems:
                raise WorkspaceRestoreRefused(problems)
            kept = [*operations.kept, *_unreadable(found, plan.allow_missing)]
            return self._carry_out(
                plan, reader, operations, protections, anchors, found, kept, begin, committed
            )

    def _carry_out(
        self,
        plan: RestorePlan,
        reader: Reader,
        operations: Operations,
        protections: Sequence[Protection],
        anchors: dict[int, Anchor],
        found: Findings,
        kept: list[LeftOut],
        begin: float,
        committed: Callable[[], None],
    ) -> RestoreResult:
        capturer = self._capturer
        warnings = list(found.warnings)
        stager = Stager(
            self.store, reader,
            skip=lambda root, path: protections[root].keeps_out(path),
            warn=lambda path, why: warnings.append((path, why)),
            allow_missing=plan.allow_missing,
        )  # fmt: skip
        reading = capturer.scanner(protections[0].rules).reader
        aside = Aside(self.store, reading, capturer.access, self.exclude)
        work = Restoration(
            self.store, stager, aside, anchors, [root.state for root in capturer.roots],
            operations, plan.snapshot_id, self.journal_dir, plan.allow_missing, warnings,
        )  # fmt: skip
        if operations.empty:
            committed()
        else:
            work.run(committed)
        for place, why in work.skipped:
            kept.append(LeftOut(place.root, join(place.parent, place.name), why, True))
        return RestoreResult(
            snapshot_id=plan.snapshot_id,
            written=len(operations.places) - len(work.skipped),
            deleted=sum(paths_in(drop) for drop in operations.drops),
            meta_only=len(operations.remetas),
            written_bytes=stager.written_bytes,
            excluded=plan.excluded,
            kept=tuple(kept),
            kept_aside=tuple(aside.kept),
            kept_aside_id=aside.snapshot_id,
            warnings=tuple(warnings),
            took_s=time.perf_counter() - begin,
        )

    def _operations(
        self,
        manifest: Manifest,
        reader: Reader,
        include_documents: bool,
        part: Part,
    ) -> tuple[Operations, list[Protection]]:
        roots = self._capturer.roots
        if len(manifest.roots) != len(roots):
            cause = f"it is of {len(manifest.roots)} directories, this session has {len(roots)}"
            raise SnapshotUnknown(manifest.id, cause)
        free: frozenset[bytes] | None = frozenset()
        protections: list[Protection] = []
        for number, root in enumerate(roots):
            documents = free
            if self.keep_documents and not include_documents:
                own = None if part.keep_notebooks else self.document
                documents = documents_of(root.path, own)
            rules = self._capturer.rules_for(root, manifest.rules)
            absent = absent_paths(manifest.left_out, number)
            former = frozenset(path for one in self.former for path in inside(root.path, one))
            chosen = None
            if part.only is not None:
                chosen = frozenset(path for of, path in part.only if of == number)
            protections.append(Protection(absent, rules, documents, former, chosen))
        planner = Planner(reader, protections, self._is_of_others if self.at_rest else None)
        planner.plan([entry for _, entry in manifest.roots], [root.state for root in roots])
        return planner.found, protections

    def _is_of_others(self, root: int, path: bytes, present: Known) -> bool:
        """Whether a file was made, and changed last, while the session was at rest."""
        if self.at_rest is None or not self.at_rest(present.changed_ns):
            return False
        made = birth_time_ns(os.path.join(os.fsencode(self._capturer.roots[root].path), path))
        return made is not None and self.at_rest(made)

    def _make_missing_roots(self, manifest: Manifest, plan: RestorePlan) -> None:
        """A root that was deleted is made again, empty; the restore then fills it."""
        made = False
        for root, (_, entry) in zip(self._capturer.roots, manifest.roots):
            if root.state is None and entry is not None:
                root.path.mkdir(mode=0o700, parents=True, exist_ok=True)
                made = True
        if made:  # the roots are locked already
            patterns = self._manifest(plan.snapshot_id).rules
            self._capturer.capture(patterns, frozenset(self.mapped_files()), "")

    def _look(self, rules_of: str) -> Snapshot:
        """Capture the present under a snapshot's rules, to compare; nothing keeps the result.

        What is read enters the store all the same: a safety snapshot will want it next.
        """
        with self._lock, locked_roots(self.roots, exclusive=False):
            patterns = self._manifest(rules_of).rules
            dirty = frozenset(self.mapped_files())
            return self._capturer.capture(patterns, dirty, "", anew=False)

    def _manifest(self, snapshot_id: str) -> Manifest:
        """A root manifest; those that the steps of one restore need are read once. Raises
        SnapshotUnknown."""
        for known in (self._capturer.manifest, self._read):
            if known is not None and known.id == snapshot_id:
                return known
        self._read = read = read_manifest(self.store, snapshot_id)
        return read

    def _differences(self, a: str, b: str) -> list[Change]:
        before, after = self._manifest(a), self._manifest(b)
        reader = Reader.of(self.store)
        changes: list[Change] = []
        with _readable(b):
            for number, ((_, old), (_, new)) in enumerate(zip(before.roots, after.roots)):
                changes += differences(reader, number, old, new)
        return changes

    def _entry(self, snapshot_id: str, path: bytes, root: int) -> Entry:
        manifest = read_manifest(self.store, snapshot_id)
        reader = Reader.of(self.store)
        entry = manifest.roots[root][1] if 0 <= root < len(manifest.roots) else None
        for name in path.split(b"/"):
            below = reader.directory(entry.tree) if entry is not None and entry.kind == "d" else {}
            entry = below.get(name)
        if entry is None or entry.kind != "f":
            raise FileNotFoundError(f"no file {path!r} in workspace snapshot {snapshot_id[:12]}")
        return entry

    @contextlib.contextmanager
    def _anchors(self) -> Iterator[dict[int, Anchor]]:
        with contextlib.ExitStack() as stack:
            anchors: dict[int, Anchor] = {}
            for number, root in enumerate(self._capturer.roots):
                if root.state is not None:
                    anchors[number] = stack.enter_context(contextlib.closing(Anchor(root.path)))
            yield anchors


@contextlib.contextmanager
def _readable(snapshot_id: str) -> Iterator[None]:
    """A manifest below the root manifest that cannot be read is an unknown snapshot too."""
    try:
        yield
    except (BlobError, TreeDamaged) as cause:
        raise SnapshotUnknown(snapshot_id, str(cause)) from cause


def _unreadable(found: Findings, allowed: bool) -> list[LeftOut]:
    if not allowed:
        return []
    return [LeftOut(place.root, path, why, True) for place, path, why in found.unreadable]
