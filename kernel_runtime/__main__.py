"""``python -m kernel_runtime``: the supervisor."""

import gc
import sys

if sys.path and sys.path[0] in ("", "."):
    # the notebook's directory: a random.py there must not replace the library's
    del sys.path[0]
elif sys.path:
    import os

    if sys.path[0] == os.getcwd():
        del sys.path[0]

# imports make objects that stay: looking for garbage among them takes a tenth of their time
gc.disable()

if sys.platform.startswith("linux"):
    from kernel_runtime import linux
    from kernel_runtime.sandbox import modes, starter

    # the sandbox's init becomes this process's child when its starter leaves
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    starter.begin(modes.likely()[0])

from kernel_runtime.supervisor.app import main  # noqa: E402 - it takes as long as what was begun

main()
