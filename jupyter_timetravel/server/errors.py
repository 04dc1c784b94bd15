"""What only happens over HTTP, on either side of it."""

from __future__ import annotations

from kernel_runtime.errors import TimeTravelError


class NotAllowed(TimeTravelError):
    """The server does not let this user do that: nothing was done."""


class BehindGateway(TimeTravelError):
    """The gateway that a kernel runs behind does not let this server speak to it."""


class ServerUnreachable(TimeTravelError):
    """No Jupyter server with this extension answers at that address."""
