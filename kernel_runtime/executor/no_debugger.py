"""Have ipykernel find no debugpy: this kernel has no debugger (docs/limits.md)."""

import sys


def note() -> None:
    """Let ipykernel note that there is none, before it makes a kernel.

    It finds out by importing debugpy, which takes a fifth of all its imports and runs ``uname``.
    Cells can import it as ever.
    """
    is_loaded = "debugpy" in sys.modules
    if not is_loaded:
        sys.modules["debugpy"] = None  # type: ignore[assignment]  # an import of it fails
    try:
        import ipykernel.debugger  # noqa: F401
    finally:
        if not is_loaded:
            del sys.modules["debugpy"]
