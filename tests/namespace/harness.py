"""The harness by the name that tests of reducers use."""

from tests.namespace.namespace_harness import Came, Dumped, dump, load

__all__ = ["Came", "Dumped", "dump", "load"]
