"""The extension of Jupyter Server: time travel over HTTP (docs/server.md).

Nothing is imported here: the client shares ``routes`` and ``errors``, and needs no server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp


def _load_jupyter_server_extension(serverapp: ServerApp) -> None:
    """Called by Jupyter Server when it starts."""
    from jupyter_timetravel.server.extension import load

    load(serverapp)
