"""Where an imported timeline comes from, and whether somebody has said that it may be restored."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from kernel_runtime.later import dataclass


@dataclass(frozen=True)
class Origin:
    """What is told of an imported timeline.

    key: id of the key that it claims to be signed with; anybody can claim that, so it only names.
    notebook: what the notebook was called, without its directories. trusted: by whom, "own key" or
    "you"; "" for nobody: nothing of it is restored.
    """

    key: str
    notebook: str
    exported_at: str
    imported_at: str
    trusted: str = ""
    wanted_path: str | None = None
    """The notebook that it is to belong to once it is trusted."""

    def as_json(self) -> str:
        """For the store."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Origin:
        """The inverse; what cannot be read is an origin that nobody trusts."""
        try:
            data: dict[str, Any] = json.loads(text)
            wanted = data.get("wanted_path")
            return Origin(
                key=str(data["key"]),
                notebook=str(data["notebook"]),
                exported_at=str(data["exported_at"]),
                imported_at=str(data["imported_at"]),
                trusted=str(data["trusted"]),
                wanted_path=None if wanted is None else str(wanted),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return Origin("unknown", "unknown", "", "")
