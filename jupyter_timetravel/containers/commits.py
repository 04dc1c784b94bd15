"""Commits of a container's own layer, for a supervisor that may not reach Docker itself.

A Unix socket in the directory that host and container share takes one JSON object a connection and
answers with one; ``{"error": text}`` where it was refused, and then nothing was changed::

    {"do": "hello"}                              -> {"image", "why", "replaced"}
    {"do": "capture", "timeline", "present"}     -> {"image", "bytes"}    the container is paused;
                                                    present: the session's next one begins with it
    {"do": "replace", "image", "back"}           -> {}    once this container ends one of `image` is
                                                    started, one of `back` if that does not come up
    {"do": "replace", "image": null}             -> {}    it is not
    {"do": "arrived"}                            -> {}    nothing else is started any more
    {"do": "keep", "timeline", "images"}         -> {"removed"}    other commits of it go

Cells have the supervisor's user and reach it too: what can be asked for is about this session's own
container and commits, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from jupyter_timetravel.containers.daemon import Commit, Daemon
from jupyter_timetravel.containers.errors import ContainerError
from kernel_runtime.store.paths import private_directory

SOCKET: Final = "s-c"
"""Its name in the runtime directory, as short as those of the channels: there is no room."""
VARIABLE: Final = "JUPYTER_TIMETRAVEL_COMMITS"
"""Tells the supervisor where it is."""
UNSET: Final = f"{VARIABLE}_UNSET"
"""Tells it which variables are another container's."""
FOLDER: Final = "commits"
UP_S: float = 180.0
"""Seconds in which a supervisor must have asked for something; else its container is given up."""
_LONGEST: Final = 1 << 20
_RETRY_S: Final = 2.0


@dataclass
class Present:
    """What a session's next container is started from; a small file beside the store."""

    base: str
    image: str
    bases: list[str] = field(default_factory=list)
    """All images that containers of this session were made of."""


class Commits:
    """Those of one session: made, started from, removed. Any thread may call."""

    def __init__(
        self,
        daemon: Daemon,
        *,
        state: Path,
        notebook: str,
        apart: str,
        base: str,
        store: Path,
        uid: int,
        create: Callable[[str], str],
        took: Callable[[str], None],
    ) -> None:
        """notebook: its path, or "" where apart tells kernels from each other. uid: of who may ask.
        create: makes a container of an image, not started. took: is told which one has taken the
        place of another."""
        self._daemon = daemon
        self._notebook, self._store, self._uid = notebook, store, uid
        key = f"{state}\0{notebook or apart}"
        self.session = blake2b(key.encode(), digest_size=12).hexdigest()
        self._file = state / FOLDER / f"{self.session}.json"
        self._base = base
        self._create, self._took = create, took
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._closed = False
        self._next: tuple[str, str] | None = None
        self._ways: list[str] = []
        self._container = self._image = self._why = ""
        self._replaced = False
        self._heard = threading.Event()
        self._present = self._read()

    def _read(self) -> Present:
        try:
            present = Present(**json.loads(self._file.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            present = Present(self._base, self._base, [])
        if present.base != self._base:  # it was built anew: sessions begin with what is in it
            present.base = present.image = self._base
        if self._base not in present.bases:
            present.bases.append(self._base)
        return present

    def _write(self) -> None:
        private_directory(self._file.parent)
        temporary = self._file.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(self._present)), "utf-8")
        os.replace(temporary, self._file)

    # --- containers ------------------------------------------------------------------------------

    def start(self) -> str:
        """Make the session's container, of its present image if that is there; started by the
        caller. Raises ContainerError."""
        with self._lock:
            image = self._present.image
            if image != self._base:
                try:
                    self._check(image)
                    self._container = self._create(image)
                    self._image, self._ways = image, [self._base]
                    return self._container
                except ContainerError as error:
                    self._why = str(error)
            self._container = self._create(self._base)
            self._image, self._ways = self._base, []
            return self._container

    def take_up(self, container: str, image: str) -> None:
        """A container that another server had made is this one's."""
        with self._lock:
            self._container, self._image = container, image

    def following(self, container: str) -> str | None:
        """The container that was started in place of one that has ended, if one was to be."""
        with self._lock:
            if self._closed or container != self._container:
                return None
            said = self._daemon.last_lines(container)
            armed, self._next = self._next, None
            if armed is None and not self._ways:
                return None
            while not self._daemon.remove(container):
                if self._closed:
                    return None
                threading.Event().wait(_RETRY_S)  # the daemon comes back, or the server ends
            self._replaced = True
            while armed is not None or self._ways:
                if armed is None:
                    image = self._ways.pop(0)
                    words = said or "it said nothing"
                    self._why = f"A container of that image did not come up: {words}."
                else:
                    image = armed[1]
                made = ""
                try:
                    made = armed[0] if armed is not None else self._create(image)
                    armed = None
                    self._daemon.start(made)
                except ContainerError as error:
                    said = str(error)
                    self._daemon.remove(made or container)
                    continue
                self._container, self._image = made, image
                self._took(made)
                self._heard = heard = threading.Event()
                args = (made, heard)
                threading.Thread(target=self._await, args=args, name="up", daemon=True).start()
                self._present.image = image
                with contextlib.suppress(OSError):
                    self._write()
                return made
            return None

    def _await(self, container: str, heard: threading.Event) -> None:
        """End a container that hangs, so that another one is tried."""
        if not heard.wait(UP_S):
            self._daemon.remove(container)

    def stand_down(self) -> None:
        """The kernel is to end: nothing is started in its place."""
        self._closed = True
        with self._lock:
            self._disarm()

    def _disarm(self) -> None:
        if self._next is not None:
            self._daemon.remove(self._next[0])
            self._next = None

    # --- what is asked ---------------------------------------------------------------------------

    def serve(self, address: Path) -> None:
        """Answer at that path, in a thread that nothing needs to join. Raises OSError."""
        address.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.bind(str(address))
        address.chmod(0o600)
        if self._uid != os.getuid():
            os.chown(address, self._uid, -1)
        listener.listen(8)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), name="commits", daemon=True).start()

    def close(self) -> None:
        """Answer no more."""
        self.stand_down()
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer, contextlib.suppress(OSError):
                peer.settimeout(_RETRY_S)
                self._serve_one(peer)

    def _serve_one(self, peer: socket.socket) -> None:
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", credentials)[1] not in (self._uid, os.getuid()):
            return
        with peer.makefile("rb") as stream:
            line = stream.readline(_LONGEST)
        answer: dict[str, Any]
        try:
            asked = json.loads(line)
            answer = self._answer(asked if isinstance(asked, dict) else {})
        except ContainerError as error:
            answer = {"error": str(error)}
        except Exception as error:  # any: whoever comes next must be answered too
            answer = {"error": f"{type(error).__name__}: {error}"}
        peer.sendall(json.dumps(answer).encode() + b"\n")

    def _answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._heard.set()
            what = asked.get("do")
            if what == "hello":
                return {"image": self._image, "why": self._why, "replaced": self._replaced}
            if what == "arrived":
                self._ways, self._why, self._replaced = [], "", False
                return {}
            if what == "capture":
                return self._capture(str(asked.get("timeline")), bool(asked.get("present")))
            if what == "replace":
                return self._replace(asked.get("image"), asked.get("back"))
            if what == "keep":
                kept = {str(image) for image in asked.get("images") or ()}
                return {"removed": self._keep(str(asked.get("timeline")), kept)}
            raise ValueError(f"nobody knows how to do {what!r}")

    def _capture(self, timeline: str, is_present: bool) -> dict[str, Any]:
        labels = {
            "session": self.session,
            "store": str(self._store),
            "timeline": timeline,
            "version": version("jupyter_timetravel"),
        }
        made = self._daemon.commit(self._container, labels)
        if is_present:
            self._present.image = made
            self._write()
        return {"image": made, "bytes": self._daemon.commit_bytes(made)}

    def _replace(self, image: Any, back: Any) -> dict[str, Any]:
        self._disarm()
        if image is None:
            self._present.image = str(back or self._image)
            self._write()
            return {}
        ways = list(dict.fromkeys(str(one) for one in (back, self._base) if one))
        for one in (str(image), *ways):
            self._check(one)
        self._next = self._create(str(image)), str(image)
        self._ways = [one for one in ways if one != image]
        # a server that is killed now finds at its next start what was to become of it
        self._present.image = str(image)
        self._write()
        return {}

    def _check(self, image: str) -> None:
        """Raise ContainerError for what is not this session's, or cannot run here."""
        if image in self._present.bases:
            self._daemon.image(image)
            return
        labels = self._daemon.commit_labels(image)
        if labels.get("session") != self.session:
            raise ContainerError(f"The image {image} is not one of this session. Nothing was done.")
        here = version("jupyter_timetravel")
        if labels.get("version") != here:
            raise ContainerError(
                f"That commit has jupyter_timetravel {labels.get('version')}, the server has "
                f"{here}: it cannot run here. Nothing was done; install that version again to go "
                "back there."
            )

    def _keep(self, timeline: str, kept: Collection[str]) -> int:
        """Of one timeline: a second kernel of the notebook has another one."""
        used = {self._image, self._present.image, *self._ways, *(self._next or ())[1:], *kept}
        of_it = self._daemon.commits({"session": self.session, "timeline": timeline})
        return _remove(self._daemon, of_it, used)

    def forget(self) -> None:
        """Remove all: nobody can find the session again."""
        _remove(self._daemon, self._daemon.commits({"session": self.session}), ())
        self._file.unlink(missing_ok=True)


def sweep(daemon: Daemon) -> None:
    """Remove the commits of sessions that are gone from their store, and those of kernels without a
    notebook that have ended."""
    by_store: dict[str, list[Commit]] = {}
    for one in daemon.commits({}):
        by_store.setdefault(one.labels.get("store", ""), []).append(one)
    for store, found in by_store.items():
        known = _timelines(Path(store))
        if known is not None:
            _forget(daemon, found, known)


def forget_gone(store: Path) -> None:
    """Remove the commits of sessions that were just deleted from a store. What cannot be reached
    goes with the next start of such a kernel. Never raises."""
    if not (store.parent.parent / FOLDER).is_dir():
        return
    try:
        daemon = Daemon()
        try:
            known = _timelines(store)
            found = list(daemon.commits({"store": str(store)}))
            if known is not None:
                _forget(daemon, found, known)
        finally:
            daemon.close()
    except ContainerError:
        return


def _forget(daemon: Daemon, found: Iterable[Commit], known: Collection[str]) -> None:
    gone = [one for one in found if one.labels.get("timeline") not in known]
    _remove(daemon, gone, ())
    for one in gone:
        state = Path(one.labels.get("store", "/nonexistent")).parent.parent
        (state / FOLDER / f"{one.labels.get('session')}.json").unlink(missing_ok=True)


def _timelines(store: Path) -> set[str] | None:
    """The ids of those that somebody can still find; None where that cannot be known."""
    from jupyter_timetravel.offline.stored import is_aside
    from kernel_runtime.store.database import open_store
    from kernel_runtime.store.errors import StoreError

    if not store.is_dir():
        return None  # on a disk that is not mounted, perhaps
    try:
        with contextlib.closing(open_store(store)) as opened:
            return {
                info.id
                for info in opened.timelines()
                if info.in_use or info.path or info.origin or is_aside(info)
            }
    except (StoreError, OSError):
        return None


def _remove(daemon: Daemon, found: Iterable[Commit], used: Collection[str]) -> int:
    """The newest first: an image that another one was made of stays as long as that does."""
    count = 0
    for one in sorted(found, key=lambda one: one.created, reverse=True):
        if one.id not in used:
            count += daemon.remove_commit(one.id)
    return count
