"""``jupyter timetravel check``: whether everything that checkpoints need is there and undamaged.

Reads every blob and the whole database, changes nothing, and loads nothing: a pickle is hashed,
never opened.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field

from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.command_line.progress import Progress
from jupyter_timetravel.meter import Meter
from jupyter_timetravel.offline import stored
from jupyter_timetravel.offline.environment import StoredEnvironment, overlay_of
from kernel_runtime.engines.charges import Needs, Stores
from kernel_runtime.errors import EnvironmentRefused, TimeTravelError
from kernel_runtime.store.database import Store, TimelineInfo
from kernel_runtime.store.digests import BlobError, Digest
from kernel_runtime.store.errors import DatabaseDamaged, StoreError
from kernel_runtime.store.keys import KeyUnusable, NotAuthentic, NotTrusted
from kernel_runtime.timeline import Checkpoint
from kernel_runtime.timeline.text import plural

SUMMARY = "read everything that is stored, and name what is damaged or missing"


@dataclass
class Bad:
    """A blob that cannot be used, and who needs it."""

    blob: str
    why: str
    checkpoints: list[str] = field(default_factory=list)


@dataclass
class Findings:
    """What a check has found."""

    blobs: int = 0
    checkpoints: int = 0
    bad: dict[str, Bad] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """Of the database and of environments."""
    untrusted: list[str] = field(default_factory=list)
    """Checkpoints that somebody else made: no damage."""

    @property
    def is_good(self) -> bool:
        """Whether every checkpoint has what it needs."""
        return not self.bad and not self.problems

    def lines(self) -> list[str]:
        """For a terminal."""
        out = [f"damaged: {text}" for text in self.problems]
        for one in self.bad.values():
            needed = ", ".join(one.checkpoints) or "no checkpoint"
            out.append(f"bad blob {one.blob}: {one.why}\n    needed by {needed}")
        out += [f"not trusted: {text}" for text in self.untrusted]
        read = f"{plural(self.blobs, 'blob')} and {plural(self.checkpoints, 'checkpoint')} read"
        return [*out, f"{read}: {'all is well' if self.is_good else 'something is damaged'}"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    stored.add_store(parser)


def run(args: argparse.Namespace) -> int:
    """Check; 1 if anything is damaged or missing. Raises StoreError if there is no telling."""
    with stored.opened(args) as store, Progress(args) as progress:
        found = check(store, progress.meter)
    told = asdict(found) | {"bad": [asdict(one) for one in found.bad.values()]}
    tell(args, "\n".join(found.lines()), {"good": found.is_good, **told})
    return 0 if found.is_good else 1


def check(store: Store, meter: Meter | None = None) -> Findings:
    """Look at everything. meter: counts what is read of each kind of content."""
    meter = meter or Meter()
    found, stores = Findings(), Stores(store.directory)
    found.problems += store.problems()
    files, namespaces, documents = stores.files, stores.namespaces, stores.documents
    damaged = {
        **_read_all(files.blobs(), lambda name: files.get(Digest(name)), found, meter),
        **_read_all(namespaces.blobs(), namespaces.get, found, meter),
        **_read_all(documents.blobs(), documents.get, found, meter),
    }
    meter.begin("looking at sessions", 0)
    try:
        for info in store.timelines():
            _session(store, stores, info, damaged, found)
    except DatabaseDamaged as error:
        found.problems.append(str(error))
    for digest, why in damaged.items():  # not needed by anyone, but not what it should be either
        found.bad.setdefault(digest, Bad(digest, why))
    return found


def _read_all(
    digests: Iterable[str], get: Callable[[str], bytes], found: Findings, meter: Meter
) -> dict[str, str]:
    """Those that cannot be used, and why."""
    damaged, all_of_them = {}, list(digests)
    meter.begin("reading", len(all_of_them), "pieces")
    for digest in all_of_them:
        found.blobs += 1
        meter.advance()
        try:
            get(digest)
        except StoreError as error:
            damaged[digest] = _why(error)
    return damaged


def _why(error: StoreError) -> str:
    return str(error).partition(". ")[0]


def _session(
    store: Store, stores: Stores, info: TimelineInfo, damaged: dict[str, str], found: Findings
) -> None:
    timeline = store.look_at(info.id)
    name = info.path or f"session {info.id[:12]}"
    found.checkpoints += len(timeline)
    all_needs = stores.needs(timeline)
    bad = {**damaged, **_missing(stores, all_needs)}
    for checkpoint in timeline:
        who = f"#{checkpoint.number} of {name}"
        needed = all_needs.files | all_needs.namespaces
        if not needed.isdisjoint(bad):
            needs = stores.needs([checkpoint])
            for digest in sorted((needs.files | needs.namespaces) & bad.keys()):
                found.bad.setdefault(digest, Bad(digest, bad[digest])).checkpoints.append(who)
        _trust(store, stores, info, checkpoint, who, found)
    _environment(store, info, list(timeline), name, found)


def _missing(stores: Stores, needs: Needs) -> dict[str, str]:
    files = set(stores.files.blobs())
    contents = {*stores.namespaces.blobs(), *stores.documents.blobs()}
    held = {path.name for path in (stores.files.path / "held").iterdir()}
    gone = (needs.files - files - held) | (needs.namespaces - contents)
    return dict.fromkeys(gone, "it is not there")


def _trust(
    store: Store,
    stores: Stores,
    info: TimelineInfo,
    checkpoint: Checkpoint,
    who: str,
    found: Findings,
) -> None:
    for capture in checkpoint.captures:
        if capture.kind != "namespace" or not capture.is_durable or not capture.ref:
            continue
        try:
            stores.namespaces.manifest(capture.ref)
            store.authenticate(info.id, checkpoint)
        except (NotTrusted, KeyUnusable) as error:
            found.untrusted.append(f"{who}: {_why(error)}")
        except NotAuthentic as error:
            found.problems.append(f"{who}: {_why(error)}")
        except BlobError:
            pass  # it is among the bad blobs
        except StoreError as error:
            found.problems.append(f"{who}: {_why(error)}")


def _environment(
    store: Store,
    info: TimelineInfo,
    checkpoints: list[Checkpoint],
    name: str,
    found: Findings,
) -> None:
    """Layers are directories that the kernel mounts: that they are there can be told, no more."""
    directory = store.directory / "environments" / info.id
    if not directory.is_dir():
        if any(overlay_of(checkpoint) for checkpoint in checkpoints):
            found.problems.append(f"{name}: its environment is gone")
        return
    try:
        environment = StoredEnvironment(directory)
        for checkpoint in checkpoints:
            capture = overlay_of(checkpoint)
            if capture is None:
                continue
            root_layer = str(capture.details.get("root_layer", ""))
            for layer in environment.missing(capture.details.get("stacks", {}), root_layer):
                found.problems.append(f"#{checkpoint.number} of {name}: layer {layer} is gone")
    except (EnvironmentRefused, TimeTravelError) as error:
        found.problems.append(f"{name}: {error}")
