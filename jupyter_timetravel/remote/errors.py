"""What can be wrong with a remote store."""

from __future__ import annotations

from kernel_runtime.errors import TimeTravelError
from kernel_runtime.timeline.text import one_line


class RemoteError(TimeTravelError):
    """A remote store could not be used."""


class RemoteUnavailable(RemoteError):
    """The library that speaks to object storage is not installed: nothing was sent or read."""

    def __init__(self, cause: ImportError) -> None:
        super().__init__(
            f"A remote store needs the package obstore ({cause}). Nothing was sent, read or lost. "
            "Install it beside jupyter_timetravel: pip install 'jupyter_timetravel[remote]'."
        )


class RemoteUnreachable(RemoteError):
    """The remote store does not answer, or refuses: what is published there is as it was."""

    def __init__(self, url: str, cause: str, mend: str) -> None:
        super().__init__(
            f"{one_line(url, 200)} cannot be used: {one_line(cause, 300)}. What is published there "
            f"and what is stored here is as it was. {mend}"
        )


class PushRefused(RemoteError):
    """A timeline was not pushed: the remote has what it had before, and the store too."""

    def __init__(self, notebook: str, cause: str, mend: str = "Then push again.") -> None:
        super().__init__(
            f"{one_line(notebook, 200)} was not pushed: {cause} What is published there is as it "
            f"was, and what has been sent already is found by the next push. {mend}"
        )


class RemotePruneRefused(RemoteError):
    """Nothing was deleted from a remote, or no more: what is published there is whole."""

    def __init__(self, url: str, cause: str, mend: str) -> None:
        super().__init__(
            f"{one_line(url, 200)} was not cleared up: {one_line(cause, 300)}. What is published "
            f"there is whole. {mend}"
        )


class PullRefused(RemoteError):
    """A timeline was not pulled: the store has the timelines that it had before."""

    def __init__(self, what: str, cause: str, mend: str) -> None:
        super().__init__(
            f"{one_line(what, 200)} was not pulled: {cause}. The timelines in the store are as "
            f"they were. {mend}"
        )
