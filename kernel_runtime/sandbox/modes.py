"""The ways to make namespaces, and which to try on this machine.

Imports nothing that takes long: see kernel_runtime.sandbox.starter.
"""

from __future__ import annotations

import os

USER_MODE = "user-namespaces"
"""A user namespace of our own in which the user's ids exist and no others."""
USER_MODES = frozenset({USER_MODE, "root-user-namespaces"})
"""Modes with a user namespace of our own."""


def is_initial_user_namespace() -> bool:
    """Whether this is the machine's own (its number is fixed: PROC_USER_INIT_INO)."""
    try:
        return os.stat("/proc/self/ns/user").st_ino == 0xEFFF_FFFD
    except OSError:
        return True


def likely() -> list[str]:
    """What to try here, the likeliest first."""
    if os.geteuid() != 0:
        return ["user-namespaces"]
    if is_initial_user_namespace():
        return ["namespaces", "root-user-namespaces"]
    # root of a container of an ordinary user's: overlays need the marks of a user namespace
    return ["root-user-namespaces", "namespaces"]
