"""Own pid and mount namespaces, where needed in a user namespace of their own.

The pid namespace makes it possible to give a woken process its old ids (clone3(2), set_tid), and
makes sure that nothing outlives the session: when its init dies, the kernel kills the rest.

The mode is found by trying. An ordinary user needs a user namespace, in which only this uid and gid
exist. Root needs none where it may mount; where it may not (a container without CAP_SYS_ADMIN), it
needs one in which every id that it has here is itself.
"""

from __future__ import annotations

import os

from kernel_runtime.errors import SandboxError
from kernel_runtime.sandbox.base import InitClient
from kernel_runtime.sandbox.refusals import is_initial_user_namespace

USER_MODE = "user-namespaces"
"""A user namespace of our own in which the user's ids exist and no others."""
USER_MODES = frozenset({USER_MODE, "root-user-namespaces"})
"""Modes with a user namespace of our own."""


class NamespaceSandbox(InitClient):
    """User (where needed), pid, mount and IPC namespaces, own /proc."""

    name = "namespaces"
    mode = "namespaces" if hasattr(os, "geteuid") and os.geteuid() == 0 else "user-namespaces"
    ids_kept = True

    async def start(self) -> None:
        """Try the modes in order. Raises SandboxError with why the last one was refused."""
        *others, last = modes()
        for mode in others:
            self.mode = mode
            try:
                await super().start()
                return
            except SandboxError:
                continue
        self.mode = last
        await super().start()


def modes() -> list[str]:
    """What to try here, the likeliest first."""
    if os.geteuid() != 0:
        return ["user-namespaces"]
    if is_initial_user_namespace():
        return ["namespaces", "root-user-namespaces"]
    # root of a container of an ordinary user's: overlays need the marks of a user namespace
    return ["root-user-namespaces", "namespaces"]
