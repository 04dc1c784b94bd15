"""Where the sessions of containers are kept on the host."""

from __future__ import annotations

import re
from hashlib import blake2b
from pathlib import Path
from typing import Final

from jupyter_core.paths import jupyter_data_dir

KEPT: Final = "kept"
"""What the supervisor inside has for itself; engines put directories beside the store."""
STORE: Final = f"{KEPT}/store"


def state_directory(image: str) -> Path:
    """What the sessions in containers of one image keep: not shared with those outside, whose
    environment is another one. The tag plays no part: a new build goes on with the old sessions."""
    name = image.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    if colon and "/" not in tag:
        name = head
    mark = blake2b(name.encode(), digest_size=4).hexdigest()
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[-40:]
    return Path(jupyter_data_dir(), "timetravel-containers", f"{readable}-{mark}").absolute()


def store_of(image: str) -> str:
    """The path of the store in there."""
    return str(state_directory(image) / STORE)
