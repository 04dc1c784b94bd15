"""Engine ``dill``: the supervisor's half. Takes in what a copy pickles, hands out what is loaded.

The other half runs in the sandbox (kernel_runtime.executor.copies and .namespace).
Everything here blocks and belongs in a thread; a channel's socket bounds each wait.

Keeps:  variables with what they share, functions and classes of the session, settings of libraries.
Loses:  what cannot be pickled, each by name and reason; threads, C state, the operating system's.
Needs:  nothing; ``dill`` in the user's environment for the rarer kinds of objects.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field
from itertools import pairwise
from typing import Any, Final

from kernel_runtime import blob_channel, hashing
from kernel_runtime.blob_channel import Blobs, ChannelError, ChannelSilent
from kernel_runtime.later import dataclass
from kernel_runtime.store.namespaces import NamespaceStore, NamespaceUnusable

NAME: Final = "dill"
_SILENCE_S: Final = 120.0
"""Seconds without a word after which a process is given up: one variable may take this long."""


class PicklingEnded(ChannelError):
    """The copy has ended, or says nothing any more, while it pickled what ``names`` says."""

    def __init__(self, error: ChannelError, names: Sequence[str]) -> None:
        super().__init__(str(error))
        self.names = tuple(names)
        self.reason = f"pickling it ends the process ({error})"
        if isinstance(error, ChannelSilent):
            self.reason = f"pickling it takes more than {_SILENCE_S:.0f} seconds"


@dataclass
class Loaded:
    """What came of loading a namespace."""

    names: list[str] = field(default_factory=list)
    lost: list[list[str]] = field(default_factory=list)
    notices: list[list[str]] = field(default_factory=list)
    summaries: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of the variables, where they were asked for."""
    untried: list[str] = field(default_factory=list)
    """Of a scratch process: what needs files as they were at the checkpoint."""


class DillEngine:
    """Writes and reads namespaces in one store."""

    name = NAME  # written in each checkpoint: never rename

    def __init__(self, store: NamespaceStore) -> None:
        self.store = store

    def take_in(
        self,
        link: socket.socket,
        frozen_at: float,
        left_out: Mapping[str, str],
        older: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Have the copy at the other end pickle its namespace; return the manifest.

        frozen_at: Unix time of the checkpoint; files may have changed since. left_out: names that
        are not pickled, and why. older: a manifest of this session: what changed since may be
        stored as deltas. Its blobs are stored, not yet flushed. Raises ChannelError (PicklingEnded
        where it is known at what), or what the store raises.
        """
        versions = _Versions(self.store, older)
        request = {
            "command": "dump",
            "frozen_at": frozen_at,
            "left_out": dict(left_out),
            "older": versions.units,
        }
        answer: dict[str, Any] = {}
        try:
            self._converse(link, request, versions, answer)
        except ChannelError as error:
            if names := answer.get("trying"):
                raise PicklingEnded(error, [str(name) for name in names]) from error
            raise
        manifest = answer.get("manifest")
        if not isinstance(manifest, dict):
            raise ChannelError(str(answer.get("error", "it sent no manifest")))
        try:
            self.store.named_in(manifest)  # one that is kept and cannot be read stops all sweeps
        except NamespaceUnusable as error:
            raise ChannelError(str(error)) from error
        return manifest

    def hand_out(
        self,
        link: socket.socket,
        manifest: Mapping[str, Any],
        names: Collection[str] | None,
        summaries: bool = False,
    ) -> Loaded:
        """Have the process at the other end load variables (None: all). Raises ChannelError."""
        answer: dict[str, Any] = {}
        request = {
            "command": "load",
            "manifest": dict(manifest),
            "names": None if names is None else sorted(names),
            "summaries": summaries,
        }
        with contextlib.closing(_Ahead(self.store, manifest)) as ahead:
            self._converse(link, request, ahead, answer)
        if "error" in answer:
            raise ChannelError(str(answer["error"]))
        return Loaded(
            [str(name) for name in answer.get("names", ())],
            _pairs(answer.get("lost")),
            _pairs(answer.get("notices")),
            dict(answer.get("summaries") or {}),
            [str(name) for name in answer.get("untried", ())],
        )

    def _converse(
        self, link: socket.socket, request: dict[str, Any], blobs: Blobs, answer: dict[str, Any]
    ) -> None:
        """Ask for something and serve blobs until it is done; answer takes in what is said."""

        def heard(words: dict[str, Any]) -> bool:
            answer.update(words)
            return bool(words.get("done"))

        link.settimeout(_SILENCE_S)
        with contextlib.suppress(BrokenPipeError):  # it has ended: receiving says how
            blob_channel.say(link, **request)
        blob_channel.serve(link, blobs, heard)

    def publish(self, manifest: Mapping[str, Any]) -> str:
        """Bring a namespace onto the disk; return its name. Raises what the store raises."""
        ref = self.store.save_manifest(dict(manifest))
        self.store.flush()
        return ref


class _Versions:
    """The store, for a dump after another one of the same session."""

    def __init__(self, store: NamespaceStore, older: Mapping[str, Any] | None) -> None:
        self._store = store
        self.missing, self.get = store.missing, store.get
        self.units: list[tuple[list[str], list[list[str]]]] = []
        """Names of variables, and the pieces of each buffer that they had: as the copy is told."""
        # what a process in the sandbox has made up costs it its deltas, and nobody a dump
        with contextlib.suppress(KeyError, TypeError, ValueError):
            self.units += _buffers_of(older["units"] if older else ())
        self._known = {name for _, buffers in self.units for one in buffers for name in one}

    def put(self, digest: str, data: bytes | memoryview, older: str | None = None) -> None:
        """See ``Blobs``. No other blob than what it was told of can be made to be relied on."""
        self._store.put(digest, data, older if older in self._known else None)


def _buffers_of(units: Iterable[Any]) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Raises KeyError, TypeError, ValueError."""
    for unit in units:
        if unit["kind"] == "variables" and any(unit["buffers"]):
            buffers = [[str(name) for name, _ in pieces] for pieces in unit["buffers"]]
            yield [str(name) for name in unit["names"]], buffers


class _Ahead:
    """Reads what comes next in a large buffer along with what is asked for.

    Pieces of one size are verified several at once, which is what reading takes most time for; the
    next ones while these are sent.
    """

    def __init__(self, store: NamespaceStore, manifest: Mapping[str, Any]) -> None:
        self._store = store
        self._groups: dict[str, list[str]] = {}
        self._next: dict[str, str] = {}
        for unit in manifest["units"]:
            for pieces in unit["buffers"]:
                names = [str(name) for name, _ in pieces]
                starts = names[:: hashing.AT_ONCE]
                self._next.update(pairwise(starts))
                for start in range(0, len(names), hashing.AT_ONCE):
                    group = list(dict.fromkeys(names[start : start + hashing.AT_ONCE]))
                    self._groups[group[0]] = group
        self._read: dict[str, bytes] = {}
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._reading: tuple[str, Future[dict[str, bytes]]] | None = None
        self.missing = store.missing
        self.put = store.put

    def get(self, digest: str) -> bytes:
        """See ``Blobs``."""
        if digest not in self._read and len(self._groups.get(digest, ())) > 1:
            self._read = self._group(digest)
        data = self._read.pop(digest, None)
        return self._store.get(digest) if data is None else data

    def _group(self, first: str) -> dict[str, bytes]:
        was, self._reading = self._reading, None
        found = was[1].result() if was and was[0] == first else None
        after = self._next.get(first)
        if after is not None:
            work = self._reader.submit(self._store.get_some, self._groups[after])
            self._reading = after, work
        return self._store.get_some(self._groups[first]) if found is None else found

    def close(self) -> None:
        """Nothing more is read."""
        self._reader.shutdown(wait=True, cancel_futures=True)


def without(manifest: Mapping[str, Any], lost: Collection[tuple[str, str]]) -> dict[str, Any]:
    """The manifest after a trial has shown that these variables cannot be loaded."""
    gone = {name for name, _ in lost}
    # units are named by their places, so a bad one stays, with nothing in it
    nothing = {"names": [], "needs": [], "stream": [], "buffers": [], "bytes": 0, "try": False}
    units = [
        {**unit, **nothing} if gone.intersection(unit["names"]) else unit
        for unit in manifest["units"]
    ]
    return {**manifest, "units": units, "lost": [*manifest["lost"], *map(list, lost)]}


def _pairs(value: Any) -> list[list[str]]:
    return [[str(part) for part in one][:2] for one in value or () if len(one) >= 2]
