"""What of a checkpoint can be restored here, told before anything is fetched or started."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from jupyter_timetravel.remote.fetching import Missing, Source
from jupyter_timetravel.remote.listing import Listing
from kernel_runtime import machine
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.images import ImageStore
from kernel_runtime.store.namespaces import NamespaceStore
from kernel_runtime.timeline import Checkpoint
from kernel_runtime.timeline.model import VOLATILE_ENGINES
from kernel_runtime.timeline.text import one_line

_SHOWN = 8


def lines(checkpoint: Checkpoint, listing: Listing, source: Source) -> list[str]:
    """For each kind of capture: whether it can be restored here, and why not.

    Reads two small lists at most; loads nothing. Raises RemoteUnreachable.
    """

    def image(ref: str) -> bytes:
        pieces = listing.images.get(ref, {}).get(f"{ref}/manifest", [])
        return b"".join(source.read(digest) for digest, _ in pieces)

    return _lines(checkpoint, image, source.read)


def lines_here(checkpoint: Checkpoint, store: Path) -> list[str]:
    """Likewise, of a checkpoint in a store. Raises StoreError."""

    def image(ref: str) -> bytes:
        return ImageStore(store).manifest_text(ref)

    return _lines(checkpoint, image, NamespaceStore(store).get)


def _lines(
    checkpoint: Checkpoint, image: Callable[[str], bytes], namespace: Callable[[str], bytes]
) -> list[str]:
    told = []
    for capture in checkpoint.captures:
        if capture.state != "ready" or capture.engine in VOLATILE_ENGINES:
            continue
        if capture.kind == "process":
            told.append(f"process: {_image(capture.ref or '', image)}")
        elif capture.kind == "namespace":
            told.append(f"variables: {_namespace(capture.ref or '', namespace)}")
        else:
            told.append(f"{'environment' if capture.engine == 'overlay' else 'files'}: yes")
    return told


def _image(ref: str, read: Callable[[str], bytes]) -> str:
    try:
        details = json.loads(read(ref).partition(b"\n")[2])["details"]
        why = machine.misfits(details.get("machine", {}))
    except (Missing, StoreError, OSError, ValueError, KeyError, TypeError) as error:
        return f"no, it cannot be read ({one_line(str(error), 100)})"
    if why:
        return f"no, {'; '.join(why)}"
    if "machine" not in details:
        return "perhaps, it does not say what machine it was made on"
    return "yes, if the files that it has mapped are the same"


def _namespace(ref: str, read: Callable[[str], bytes]) -> str:
    try:
        manifest: Mapping[str, Any] = json.loads(read(ref).partition(b"\n")[2])
        return differences(manifest)
    except (Missing, StoreError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"no, they cannot be read ({one_line(str(error), 100)})"


def differences(manifest: Mapping[str, Any]) -> str:
    """What differs between the Python of a namespace and this one, in words. Raises KeyError."""
    made_on, found = str(manifest["python"]), []
    if made_on.split(".")[:2] != platform.python_version().split(".")[:2]:
        found.append(
            f"Python is {platform.python_version()}, not {one_line(made_on, 20)}: functions and "
            "classes of the session do not come back"
        )
    missing, other = [], []
    for name, version in _versions(manifest["modules"].items()):
        have = _installed(name)
        if have is None:
            missing.append(name)
        elif version and have and have != version:
            other.append(f"{name} is {have}, not {version}")
    if missing:
        found.append(f"no package has {_some(missing)}")
    if other:
        found.append(_some(other))
    if not found:
        return "yes"
    return f"in part, compared with {sys.executable}: {'; '.join(found)}"


def _versions(modules: Iterable[tuple[Any, Any]]) -> list[tuple[str, str]]:
    return sorted((one_line(str(n), 60), one_line(str(v or ""), 40)) for n, v in modules)


def _installed(module: str) -> str | None:
    """The version of the package that has a module; "" where it is there and says none."""
    names = importlib.metadata.packages_distributions().get(module.partition(".")[0], [])
    for name in names:
        return importlib.metadata.version(name)
    return "" if module.partition(".")[0] in sys.stdlib_module_names else None


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
