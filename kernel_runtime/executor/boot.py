"""Start the executor under any interpreter that has ipykernel, also one without this package.

Run as a script. Our two packages are made importable from where this file lies, and nothing else
of that directory is: the user's environment must not see the supervisor's site-packages.
"""

import importlib.abc
import importlib.util
import os
import sys

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class _OurPackages(importlib.abc.MetaPathFinder):
    """Find kernel_runtime and jupyter_timetravel beside this file, last of all finders."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name not in ("kernel_runtime", "jupyter_timetravel"):
            return None
        package = os.path.join(_ROOT, name)
        return importlib.util.spec_from_file_location(
            name, os.path.join(package, "__init__.py"), submodule_search_locations=[package]
        )


def main() -> None:
    """Replace the script's directory on sys.path by what an interactive session has."""
    if sys.path and os.path.abspath(sys.path[0]) == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]
    sys.meta_path.append(_OurPackages())
    from kernel_runtime.executor.app import ExecutorApp

    ExecutorApp.launch_instance(sys.argv[1:])


if __name__ == "__main__":
    main()
