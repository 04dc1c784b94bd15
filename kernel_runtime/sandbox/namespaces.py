"""Own pid and mount namespaces, where needed in a user namespace of their own.

The pid namespace makes it possible to give a woken process its old ids (clone3(2), set_tid), and
makes sure that nothing outlives the session: when its init dies, the kernel kills the rest.

The mode is found by trying. An ordinary user needs a user namespace, in which only this uid and gid
exist. Root needs none where it may mount; where it may not (a container without CAP_SYS_ADMIN), it
needs one in which every id that it has here is itself.
"""

from __future__ import annotations

from kernel_runtime.errors import SandboxError
from kernel_runtime.sandbox import modes
from kernel_runtime.sandbox.base import InitClient


class NamespaceSandbox(InitClient):
    """User (where needed), pid, mount and IPC namespaces, own /proc."""

    name = "namespaces"
    mode = modes.USER_MODE
    ids_kept = True

    async def start(self) -> None:
        """Try the modes in order. Raises SandboxError with why the last one was refused."""
        *others, last = modes.likely()
        for mode in others:
            self.mode = mode
            try:
                await super().start()
                return
            except SandboxError:
                continue
        self.mode = last
        await super().start()
