"""What is saved and where it goes: the parts that dump and load are given."""

from __future__ import annotations

import contextvars
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Sink(Protocol):
    """Where a dump puts its pieces. Digests are BLAKE2b-256 of the plain bytes, in hex."""

    def missing(self, digests: Sequence[str]) -> Collection[str]:
        """Those of ``digests`` that are not stored yet."""

    def put(self, digest: str, data: bytes | memoryview, older: str | None = None) -> None:
        """Store a piece. older: the digest of one that it may be much like."""


class Source(Protocol):
    """Where a load gets pieces from."""

    def get(self, digest: str) -> bytes:
        """The piece of this digest."""

    def get_into(self, digest: str, target: memoryview) -> None:
        """Read the piece of this digest into writable memory of exactly its size."""


@dataclass
class SessionState:
    """The session as dump and load see it.

    ``namespace`` is the user's dict, which is ``__main__.__dict__``. ``hidden`` are IPython's names
    in it (``user_ns_hidden``): one that still is bound to IPython's own object is left alone.
    ``shell`` is the InteractiveShell, None where there is none. ``files`` describes descriptors by
    number ({"path", "flags", "offset"}): in a woken copy none of them is open. ``hash_seed`` is the
    PYTHONHASHSEED that the process was started with. ``context`` is that of the cells; None: the
    present one. ``is_trial``: files are not those of the checkpoint, and may not be written to, so
    what fails for that reason is untried, not lost. ``frozen_at``: Unix time of the checkpoint.
    ``directory``: the working one at that moment, which may be gone; None: the present one.
    ``left_out``: why each of these names is not to be pickled: it was tried, and ended the process.
    ``older``: the digests of the pieces of each buffer that these names had in a dump before.
    """

    namespace: dict[str, Any]
    hidden: Mapping[str, Any] = field(default_factory=dict)
    outputs: dict[int, Any] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    execution_count: int = 1
    shell: Any = None
    hash_seed: str | None = None
    files: dict[int, dict[str, Any]] = field(default_factory=dict)
    context: contextvars.Context | None = None
    is_trial: bool = False
    frozen_at: float = math.inf
    directory: str | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    older: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)

    def in_cells(self, function: Callable[[], T]) -> T:
        """Call a function in the context of the cells, also from within one."""
        if self.context is None:
            return function()
        try:
            return self.context.run(function)
        except RuntimeError as error:
            if "cannot enter context" not in str(error):
                raise
            return function()  # it is the one that we are in


@dataclass
class Loaded:
    """What a load brought back: names, and what it did not, as [name, reason].

    ``untried`` are names that a trial says nothing about (see ``SessionState.is_trial``).
    """

    names: list[str] = field(default_factory=list)
    lost: list[list[str]] = field(default_factory=list)
    notices: list[list[str]] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)
