"""What a process image depends on of the machine that it was made on, and what differs here.

The loader compares bit by bit and refuses (native/loader.c); this says the same in words, before
anything is started.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_SHOWN = 6


@cache
def here() -> Mapping[str, Any]:
    """This machine: plain JSON. Features of the processor are those that Linux lists."""
    named = platform.uname()
    flags: set[str] = set()
    try:
        for line in Path("/proc/cpuinfo").read_text("ascii", "replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("flags", "Features"):
                flags.update(value.split())
                break
    except OSError:
        pass
    return {
        "architecture": named.machine,
        "kernel": named.release,
        "build": named.version,
        "features": sorted(flags),
    }


def misfits(made_on: Mapping[str, Any], present: Mapping[str, Any] | None = None) -> list[str]:
    """Why an image that was made on one machine cannot be loaded on another; empty if it can be.

    What only the present machine has is no reason. made_on: ``here()`` of the other; what it does
    not say is not compared.
    """
    now = here() if present is None else present
    if made_on.get("architecture", now["architecture"]) != now["architecture"]:
        return [f"the processor is {now['architecture']}, not {made_on['architecture']}"]
    found = []
    missing = sorted(set(made_on.get("features", ())) - set(now["features"]))
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        found.append(f"the processor has no {', '.join(missing[:_SHOWN])}{more}")
    if made_on.get("kernel", now["kernel"]) != now["kernel"]:
        found.append(f"the kernel is {now['kernel']}, not {made_on['kernel']}")
    elif made_on.get("build", now["build"]) != now["build"]:
        found.append(f"the kernel {now['kernel']} is another build ({now['build']})")
    return found
