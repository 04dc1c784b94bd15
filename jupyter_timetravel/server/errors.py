"""What only happens over HTTP, on either side of it."""

from __future__ import annotations

from kernel_runtime.errors import TimeTravelError


class NotAllowed(TimeTravelError):
    """The server does not let this user do that: nothing was done."""


class NeedsKernel(TimeTravelError):
    """A session without a running kernel cannot do that: nothing was done."""


class BehindGateway(TimeTravelError):
    """The kernel runs on another server, behind a gateway: that one has to be asked."""


class ServerUnreachable(TimeTravelError):
    """No Jupyter server with this extension answers at that address."""
