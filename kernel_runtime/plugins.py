"""Engines and sandboxes by name: ours, and those that other packages bring as entry points.

Groups: ``kernel_runtime.process_engines`` (called with the socket directory and ``keep_ids``, see
engines/fork.py) and ``kernel_runtime.sandboxes`` (called with two callbacks, see sandbox/base.py).
Ours are declared there too, but are known here: reading the metadata of everything that is
installed would cost each kernel start tens of milliseconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from kernel_runtime.errors import SandboxError

PROCESS_ENGINES = "kernel_runtime.process_engines"
SANDBOXES = "kernel_runtime.sandboxes"

_OURS = {
    (PROCESS_ENGINES, "fork"): "kernel_runtime.engines.fork:ForkEngine",
    (PROCESS_ENGINES, "dmtcp"): "kernel_runtime.engines.dmtcp:DmtcpEngine",
    (SANDBOXES, "namespaces"): "kernel_runtime.sandbox.namespaces:NamespaceSandbox",
    (SANDBOXES, "none"): "kernel_runtime.sandbox.none:NoSandbox",
}


def load(group: str, name: str) -> Any:
    """Return the class that bears this name. Raises SandboxError naming those there are."""
    ours = _OURS.get((group, name))
    if ours is not None:
        module, _, attribute = ours.partition(":")
        return getattr(import_module(module), attribute)
    from importlib.metadata import entry_points  # ours need none of it, and it is long to import

    found = entry_points(group=group)
    for point in found:
        if point.name == name:
            return point.load()
    names = {n for g, n in _OURS if g == group} | {point.name for point in found}
    raise SandboxError(
        f"There is no {name!r} among {group}: there are {', '.join(sorted(names))}. "
        "Set another one, or install the package that brings it."
    )
