"""Session time travel for Jupyter: go back to any cell, with memory, threads and files.

from jupyter_timetravel import Client      # from outside a kernel
%load_ext jupyter_timetravel               # in a kernel or an IPython terminal
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.interactiveshell import InteractiveShell

    from jupyter_timetravel.async_client import AsyncClient
    from jupyter_timetravel.client import Client

    __version__: str

__all__ = ["AsyncClient", "Client", "__version__", "compensate", "load_ipython_extension"]


def __getattr__(name: str) -> Any:
    # Importing the package must stay cheap: each kernel does it before the first cell.
    if name == "__version__":
        from importlib.metadata import version

        return version("jupyter_timetravel")
    if name == "Client":
        from jupyter_timetravel.client import Client

        return Client
    if name == "AsyncClient":
        from jupyter_timetravel.async_client import AsyncClient

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def compensate(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
    """Register ``fn(*args, **kwargs)`` as the undo of an effect of the cell that runs.

    ``%restore N --compensate`` calls what was registered by the cells that it takes back, newest
    first. Outside of a time-travel kernel nothing goes back, and this does nothing. Raises
    BadRequest where no cell runs.
    """
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    timetravel = getattr(getattr(shell, "kernel", None), "timetravel", None)
    if timetravel is not None:
        timetravel.compensations.add(fn, args, kwargs)


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    return [{"module": "jupyter_timetravel.server"}]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Give a shell the magics: all of them in a time-travel kernel, those for files elsewhere."""
    link = getattr(getattr(shell, "kernel", None), "timetravel", None)
    if link is not None:
        from jupyter_timetravel.magics import TimeTravelMagics

        TimeTravelMagics(shell, link).register()
    else:
        from jupyter_timetravel.plain import load

        load(shell)
