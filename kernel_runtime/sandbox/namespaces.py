"""Own pid and mount namespaces; for ordinary users in a user namespace of their own.

The pid namespace makes it possible to give a woken process its old ids (clone3(2), set_tid), and
makes sure that nothing outlives the session: when its init dies, the kernel kills the rest.
"""

from __future__ import annotations

import os

from kernel_runtime.sandbox.base import InitClient


class NamespaceSandbox(InitClient):
    """User (for ordinary users), pid and mount namespaces, own /proc."""

    name = "namespaces"
    mode = "namespaces" if hasattr(os, "geteuid") and os.geteuid() == 0 else "user-namespaces"
    ids_kept = True
