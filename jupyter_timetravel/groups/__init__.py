"""Several kernels as one: captured at one moment, restored all or none. See docs/groups.md.

``checkpoint`` and ``restore`` are coroutines; the ``jupyter timetravel`` command runs them.
"""

from jupyter_timetravel.groups.errors import GroupFailed
from jupyter_timetravel.groups.restoring import restore
from jupyter_timetravel.groups.restoring_one import restore_member
from jupyter_timetravel.groups.showing import show
from jupyter_timetravel.groups.taking import checkpoint

__all__ = ["GroupFailed", "checkpoint", "restore", "restore_member", "show"]
