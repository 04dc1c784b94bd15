"""What can go wrong around a container."""

from __future__ import annotations

from kernel_runtime.errors import TimeTravelError


class ContainerError(TimeTravelError):
    """A container could not be started or used; the message says why, and nothing was left behind.

    Raised at launch, so the Jupyter server shows it to whoever opened the notebook.
    """
