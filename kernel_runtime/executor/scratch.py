"""A process that loads variables once, to find out whether they can be, and ends.

Run as a script with the number of its channel's descriptor. Confined: whatever the loading of an
object does, it reaches no network and writes no file.
"""

import os
import socket
import sys
import tempfile
import types


def main() -> None:
    import boot  # type: ignore[import-not-found]  # beside this script

    boot.prepare()
    from kernel_runtime.executor import confine, copies

    main_module = types.ModuleType("__main__")
    sys.modules["__main__"] = main_module
    channel = socket.socket(fileno=int(sys.argv[1]))
    os.nice(10)  # as native/copies.h has it
    tempfile.gettempdir()  # it is found by writing there, and dill asks for it
    confine.confine()
    copies.load_alone(channel, main_module.__dict__, boot.hash_seed)


if __name__ == "__main__":
    main()
