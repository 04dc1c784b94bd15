"""The supervisor's own code, held in memory where cells can delete it.

In a sandbox what cells delete is deleted for them only. Without one, `rm -rf` of the packages'
directory takes what the supervisor would import later, such as what a restore needs.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil

import kernel_runtime

_NOT_OURS_TO_RUN = ("kernel_runtime.__main__", "kernel_runtime.executor")


def hold() -> None:
    """Import every module that the supervisor may need; those whose own needs are not there stay
    out, as they would later. Takes some 100 ms."""
    importlib.import_module("psutil")  # which is imported when somebody asks for it
    for found in pkgutil.walk_packages(kernel_runtime.__path__, "kernel_runtime."):
        if not found.name.startswith(_NOT_OURS_TO_RUN):
            with contextlib.suppress(ImportError):
                importlib.import_module(found.name)
