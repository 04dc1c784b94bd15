"""From a snapshot and the directory as it is to the steps of a restore. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from kernel_runtime.engines.workspace.model import Entry, LeftOut
from kernel_runtime.engines.workspace.operations import (
    Directory,
    Drop,
    Operations,
    Parts,
    Place,
    Remeta,
    join,
)
from kernel_runtime.engines.workspace.protect import NOT_CHOSEN, OTHERS, Protection
from kernel_runtime.engines.workspace.state import DirState, Known
from kernel_runtime.engines.workspace.tree import Reader

_Located = dict[tuple[int, bytes], tuple[Parts, Entry]]


class Planner:
    """Compares root by root; then settles hard links, which can span roots."""

    def __init__(
        self,
        reader: Reader,
        protections: Sequence[Protection],
        is_of_others: Callable[[int, bytes, Known], bool] | None = None,
    ) -> None:
        """is_of_others: whether the file at a path, with the number of its root, is another
        program's: it stays where the snapshot has nothing, unless it was chosen by name."""
        self._is_of_others = is_of_others
        self._reader = reader
        self._protections = protections
        self._links = False
        self.found = Operations()

    def plan(self, targets: Sequence[Entry | None], states: Sequence[DirState | None]) -> None:
        """Fill `found`. Raises BlobError or TreeDamaged if a manifest cannot be read."""
        for root, (target, state) in enumerate(zip(targets, states)):
            if target is None:
                if state is not None:
                    self._keep(root, b"", "the directory was not there at the checkpoint")
            elif state is None:
                self.found.missing_roots.append((root, target))
            else:
                self._directory(root, (), target, state)
        if self._links:
            self._settle_links(targets, states)

    # -- comparing ----------------------------------------------------------------------------

    def _directory(self, root: int, parts: Parts, target: Entry, state: DirState) -> bool:
        """Compare two directories at one path. Returns whether anything in it will change."""
        if target.tree == state.tree and target.meta == state.entry.meta:
            return False
        changed = False
        if target.tree != state.tree:
            wanted = self._reader.directory(target.tree)
            for name in sorted({*wanted, *state.names()}):
                if self._name(root, parts, name, wanted.get(name), state):
                    changed = True
        if self._protections[root].is_chosen(b"/".join(parts)):
            if changed or target.meta != state.entry.meta:
                self.found.directories.append(Directory(root, parts, target, state))
        elif changed:
            # something in it was chosen, it was not: it keeps its own mode and owner
            self.found.directories.append(Directory(root, parts, state.entry, state))
        return changed

    def _name(
        self, root: int, parts: Parts, name: bytes, target: Entry | None, state: DirState
    ) -> bool:
        path = join(parts, name)
        present: Known | DirState | None = state.files.get(name) or state.dirs.get(name)
        protection = self._protections[root]
        reason = protection.reason(path)
        if present is None and target is not None and not protection.keeps_out(path):
            reason = ""
        if not reason and isinstance(present, Known) and not protection.is_chosen(path):
            reason = "a file that was not chosen is in the place of a directory"
        note = state.notes.get(name)
        if note is not None and note[1]:
            reason = f"what is there now cannot be kept: {note[0]}"
        elif name in state.excluded:
            reason = "what is there now is left out by the rules"
        elif target is None and isinstance(present, Known) and self._stays(root, path, present):
            reason = reason or OTHERS
        if reason:
            if target is None or present is None or _differs(target, present):
                self._keep(root, path, reason)
            return False
        if present is None:
            assert target is not None
            return self._place(root, parts, target, None)
        if target is None:
            return self._delete(root, parts, name, present)
        return self._both(root, parts, target, present)

    def _both(self, root: int, parts: Parts, target: Entry, present: Known | DirState) -> bool:
        if isinstance(present, DirState):
            if target.kind == "d":
                self._directory(root, (*parts, target.name), target, present)
                return False
            if self._must_stay_below(root, (*parts, target.name), present):
                what = "holds paths left out"
                if not self._protections[root].is_chosen(join(parts, target.name)):
                    what = "was not chosen"
                reason = f"a directory that {what} is in its place"
                self._keep(root, join(parts, target.name), reason)
                return False
            return self._place(root, parts, target, present)
        if target == present.entry:
            return False
        if target.link or present.entry.link:
            self._links = True
        # Symlinks and fifos come back one by one: what is set on one name must not show at others.
        shared = present.links > 1 and target.kind != "f"
        other_meta = target.meta != present.entry.meta
        if target.content != present.entry.content or (shared and other_meta):
            return self._place(root, parts, target, present)
        if other_meta:
            self.found.remetas.append(Remeta(root, parts, target, present))
        return False

    def _place(
        self, root: int, parts: Parts, target: Entry, present: Known | DirState | None
    ) -> bool:
        if target.link:
            self._links = True
        elif target.kind == "d" and not self._links:
            self._links = any(entry.link for _, entry in self._reader.walk(target.tree))
        self.found.places.append(Place(root, parts, target, present))
        return True

    def _delete(self, root: int, parts: Parts, name: bytes, present: Known | DirState) -> bool:
        if isinstance(present, DirState):
            below = (*parts, name)
            if self._must_stay_below(root, below, present):
                if self._protections[root].is_chosen(join(parts, name)):
                    self._keep(root, join(parts, name), "holds paths that are left out")
                changed = [
                    self._name(root, below, child, None, present)
                    for child in sorted(present.names())
                ]
                for child in (*present.notes, *present.excluded):
                    if child not in present.files and child not in present.dirs:
                        self._name(root, below, child, None, present)
                if any(changed):
                    self.found.directories.append(Directory(root, below, None, present))
                return False
        elif present.entry.link:
            self._links = True
        self.found.drops.append(Drop(root, parts, name, present))
        return True

    def _must_stay_below(self, root: int, parts: Parts, present: DirState) -> bool:
        """Whether a directory, or something in it, is what a restore leaves alone."""
        protection = self._protections[root]
        if present.total_excluded or not protection.is_chosen(b"/".join(parts)):
            return True
        protects = present.total_notes or protection.may_be_below(b"/".join(parts))
        if not protects and self._is_of_others is None:
            return False
        pending = [(parts, present)]
        while pending:
            at, state = pending.pop()
            if any(absent for _, absent in state.notes.values()):
                return True
            if protects and any(protection.reason(join(at, name)) for name in state.names()):
                return True
            if any(self._stays(root, join(at, name), one) for name, one in state.files.items()):
                return True
            pending.extend(((*at, name), below) for name, below in state.dirs.items())
        return False

    def _stays(self, root: int, path: bytes, present: Known) -> bool:
        return (
            self._is_of_others is not None
            and self._protections[root].only is None
            and self._is_of_others(root, path, present)
        )

    def _keep(self, root: int, path: bytes, reason: str) -> None:
        if reason == NOT_CHOSEN:
            return  # nobody has asked
        self.found.kept.append(LeftOut(root, path, reason, True))

    # -- hard links ---------------------------------------------------------------------------

    def _settle_links(
        self, targets: Sequence[Entry | None], states: Sequence[DirState | None]
    ) -> None:
        """Make groups of hard links come back as such, and separate what was separate.

        A group of which any member changes is made anew as a whole. A file that is also linked
        from elsewhere, outside of the workspace, is never changed in place.
        """
        wanted = self._groups_of_targets(targets)
        here = _groups_of_states(states)
        present_at = {path: key for key, members in here.items() for path in members}
        # What an existing directory's rename moves as a whole needs no step of its own.
        stepped = {(p.root, join(p.parent, p.name)) for p in self.found.places}
        gone = {(d.root, join(d.parent, d.name)) for d in self.found.drops}
        covered = {
            (p.root, join(p.parent, p.name)) for p in self.found.places if p.target.kind == "d"
        }
        force: dict[tuple[int, bytes], tuple[Parts, Entry]] = {}
        settled: set[tuple[int, bytes]] = set()
        for members in wanted.values():
            inodes = {present_at.get(path) for path in members}
            inode = next(iter(inodes))
            intact = len(inodes) == 1 and inode is not None and not (members.keys() & stepped)
            if intact and inode is not None:
                others = {p for p in here[inode] if p not in members and not _inside(p, gone)}
                intact = others <= stepped
            if intact:
                settled |= members.keys()
            else:
                force.update(members)
        for members_here in here.values():
            stay = {p for p in members_here if not _inside(p, gone) and p not in stepped}
            if len(stay) > 1:
                loose = {p: members_here[p] for p in stay - settled - force.keys()}
                for path in loose:
                    entry = self._target_at(targets, *path)
                    if entry is not None:
                        force[path] = (members_here[path][0], entry)
        self._force(force, stepped, covered, states)
        self._separate_from_outside(here, states)

    def _force(
        self,
        force: Mapping[tuple[int, bytes], tuple[Parts, Entry]],
        stepped: set[tuple[int, bytes]],
        covered: set[tuple[int, bytes]],
        states: Sequence[DirState | None],
    ) -> None:
        for (root, path), (parent, entry) in force.items():
            if (root, path) in stepped or _inside((root, path), covered):
                continue
            if self._protections[root].reason(path):
                continue
            state = _find(states[root], parent)
            known = None if state is None else state.files.get(entry.name)
            if state is None or known is None:
                continue  # kept for a reason that is listed already
            self.found.remetas = [
                one
                for one in self.found.remetas
                if (one.root, join(one.parent, one.target.name)) != (root, path)
            ]
            self.found.places.append(Place(root, parent, entry, known))
            self._touch_directory(root, parent, state)

    def _separate_from_outside(
        self, here: Mapping[str, _Located], states: Sequence[DirState | None]
    ) -> None:
        remaining: list[Remeta] = []
        for one in self.found.remetas:
            group = here.get(one.present.entry.link, {})
            inside = max(1, len(group))
            if one.present.links > inside and not one.present.entry.held:
                self.found.places.append(Place(one.root, one.parent, one.target, one.present))
                state = _find(states[one.root], one.parent)
                if state is not None:
                    self._touch_directory(one.root, one.parent, state)
            else:
                remaining.append(one)
        self.found.remetas = remaining

    def _touch_directory(self, root: int, parts: Parts, state: DirState) -> None:
        known = {(one.root, one.parts) for one in self.found.directories}
        if (root, parts) not in known:
            self.found.directories.append(Directory(root, parts, state.entry, state))

    def _groups_of_targets(self, targets: Sequence[Entry | None]) -> dict[str, _Located]:
        groups: dict[str, _Located] = {}
        for root, target in enumerate(targets):
            if target is None:
                continue
            for path, entry in self._reader.walk(target.tree):
                if entry.link and entry.kind == "f":
                    parent = tuple(path.split(b"/")[:-1])
                    groups.setdefault(entry.link, {})[root, path] = (parent, entry)
        return {link: members for link, members in groups.items() if len(members) > 1}

    def _target_at(self, targets: Sequence[Entry | None], root: int, path: bytes) -> Entry | None:
        entry = targets[root]
        for name in path.split(b"/"):
            if entry is None or entry.kind != "d":
                return None
            entry = self._reader.directory(entry.tree).get(name)
        return entry if entry is not None and entry.kind == "f" else None


def _groups_of_states(states: Sequence[DirState | None]) -> dict[str, _Located]:
    groups: dict[str, _Located] = {}
    for root, top in enumerate(states):
        for state in top.walk() if top is not None else ():
            parts: Parts | None = None
            for name, known in state.files.items():
                if known.entry.link:
                    parts = state.path() if parts is None else parts
                    located = (parts, known.entry)
                    groups.setdefault(known.entry.link, {})[root, join(parts, name)] = located
    return groups


def _inside(path: tuple[int, bytes], tops: set[tuple[int, bytes]]) -> bool:
    """Whether a path is one of tops or lies below one."""
    root, at = path
    return any((root, above) in tops for above in _ancestors(at))


def _ancestors(path: bytes) -> Iterator[bytes]:
    while path:
        yield path
        path = path.rpartition(b"/")[0]


def _find(state: DirState | None, parts: Parts) -> DirState | None:
    for name in parts:
        if state is None:
            return None
        state = state.dirs.get(name)
    return state


def _differs(target: Entry, present: Known | DirState) -> bool:
    if isinstance(present, DirState):
        return target.kind != "d" or target.tree != present.tree
    return target.content != present.entry.content
