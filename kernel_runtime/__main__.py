"""``python -m kernel_runtime``: the supervisor."""

import sys

if sys.path and sys.path[0] in ("", "."):
    # the notebook's directory: a random.py there must not replace the library's
    del sys.path[0]
elif sys.path:
    import os

    if sys.path[0] == os.getcwd():
        del sys.path[0]

from kernel_runtime.supervisor.app import main

main()
