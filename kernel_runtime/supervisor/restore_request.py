"""What a restore is asked for: parsed and checked once, whoever asks (docs/protocol.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, Literal

from kernel_runtime.errors import BadRequest
from kernel_runtime.later import dataclass
from kernel_runtime.supervisor.command_types import check_types
from kernel_runtime.timeline.names import Spec

Only = Literal["process", "files"]


@dataclass(frozen=True)
class RestoreRequest:
    """The arguments of ``restore``, as docs/protocol.md describes them.

    What stands before ``paths`` is for everybody; the rest is for who coordinates a group. Raises
    BadRequest for options that do not go together.
    """

    checkpoint: Spec = -1
    only: Only | None = None
    dry_run: bool = False
    undo: bool = False
    force: bool = False
    compensate: bool = False
    partial: bool = False
    reseed: bool = False
    paths: tuple[str, ...] | None = None
    keep_notebooks: bool = False
    lease: str | None = None

    def __post_init__(self) -> None:
        if self.only not in (None, "process", "files"):
            raise BadRequest(f"only can be process or files, not {self.only!r}. Nothing was done.")
        if self.compensate and self.only == "files":
            raise BadRequest(
                "compensate is for a restore of memory too: files alone take no cell back. "
                "Nothing was done."
            )
        if self.reseed and self.only == "files":
            raise BadRequest(
                "reseed is for a restore of memory too: files alone have no generators. "
                "Nothing was done."
            )

    @classmethod
    def read(cls, args: Mapping[str, Any]) -> RestoreRequest:
        """From the arguments of a message. Raises BadRequest: nothing is guessed."""
        unknown = sorted(args.keys() - set(_NAMES))
        if unknown:
            raise BadRequest(
                f"restore has no argument {unknown[0]!r}; it has {', '.join(sorted(_NAMES))}. "
                "Nothing was done."
            )
        check_types(args)
        paths = args.get("paths")
        if not all(isinstance(path, str) for path in paths or ()):
            raise BadRequest("paths must be a list of texts. Nothing was done.")
        return cls(**{**args, "paths": None if paths is None else tuple(paths)})

    def args(self) -> dict[str, Any]:
        """For a message, without what is as if not given: an earlier kernel may not know it."""
        given = {
            field.name: value
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        }
        return given if self.paths is None else {**given, "paths": list(self.paths)}


_NAMES: Final = tuple(RestoreRequest.__annotations__)

OPTIONS: Final = tuple(
    name for name in _NAMES if name not in ("checkpoint", "paths", "keep_notebooks", "lease")
)
"""What everybody may ask for beside the checkpoint."""
