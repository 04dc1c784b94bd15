"""Start the executor under any interpreter that has ipykernel, also one without this package.

Run as a script. Our two packages are made importable from where this file lies, and nothing else
of that directory is: the user's environment must not see the supervisor's site-packages.
"""

import gc
import importlib.util
import os
import sys

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

OWN_SEED = "TIMETRAVEL_HASH_SEED"
"""Set where PYTHONHASHSEED is the supervisor's choice: programs that cells start do not get it."""

hash_seed = None
"""The seed of this process's string hashes, as text; None if it is random."""


class _OurPackages:  # no importlib.abc.MetaPathFinder: that would import a dozen modules more
    """Find kernel_runtime and jupyter_timetravel beside this file, last of all finders."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name not in ("kernel_runtime", "jupyter_timetravel"):
            return None
        package = os.path.join(_ROOT, name)
        return importlib.util.spec_from_file_location(
            name, os.path.join(package, "__init__.py"), submodule_search_locations=[package]
        )


def prepare() -> None:
    """Replace the script's directory on sys.path by what an interactive session has."""
    global hash_seed
    if sys.path and os.path.abspath(sys.path[0]) == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]
    sys.meta_path.append(_OurPackages())
    seed = os.environ.get("PYTHONHASHSEED", "random")
    hash_seed = seed if seed.isdigit() else None
    if os.environ.pop(OWN_SEED, None) is not None:
        os.environ.pop("PYTHONHASHSEED", None)


def main() -> None:
    prepare()
    # imports make objects that stay: looking for garbage among them takes a tenth of their time
    gc.disable()
    from kernel_runtime.executor.app import ExecutorApp

    ExecutorApp.hash_seed = hash_seed
    ExecutorApp.launch_instance(sys.argv[1:])


if __name__ == "__main__":
    main()
