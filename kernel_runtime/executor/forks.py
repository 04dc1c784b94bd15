"""An interrupt that comes while the process forks is raised when that is done.

A signal that comes during fork(2), which takes long in a large process, is handled in the first
Python function of os.register_at_fork that runs next, such as one of logging's. What is raised
there is printed and lost, and the function does not do what it is there for: release a lock.

What is registered here is written in C, as the first bytecode that runs next has to be that of the
caller of fork: functions that are registered later, and are written in Python, are not guarded.
"""

from __future__ import annotations

import _thread
import os
from functools import partial

_forking: list[bool] = []
_put_off: list[int] = []


def install() -> None:
    """Guard the forks of this process from now on; once."""
    begin = partial(_forking.append, True)
    os.register_at_fork(before=_put_off.clear)
    os.register_at_fork(before=begin, after_in_parent=_forking.clear, after_in_child=_forking.clear)
    # it simulates each signal that was put off, and none if there is none; what struck the parent
    # is not for the child
    again = partial(max, _put_off, key=_thread.interrupt_main, default=None)
    os.register_at_fork(after_in_parent=again, after_in_child=_put_off.clear)


def puts_off(signum: int) -> bool:
    """For a handler that raises: whether it is not to, as it is called once more after a fork."""
    if _forking:
        _put_off[:] = [signum]
    return bool(_forking)
