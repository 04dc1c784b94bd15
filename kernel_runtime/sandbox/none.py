"""No namespaces: processes are kept together by a subreaper only.

Where namespaces are refused (hardened kernels, many containers). Everything works but that woken
processes and threads get new ids (unless the user is root or holds CAP_CHECKPOINT_RESTORE).
"""

from __future__ import annotations

from kernel_runtime.sandbox.base import InitClient


class NoSandbox(InitClient):
    """The host's own namespaces."""

    name = "none"
    mode = "none"
    ids_kept = False

    @property
    def root(self) -> str:
        return ""

    def proc(self, pid: int | str = "") -> str:
        return f"/proc/{pid}"
