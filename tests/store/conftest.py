"""The tests of the store share some modules, and the library with those in native/."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kernel_runtime.store.keys import Keys
from kernel_runtime.store.namespaces import NamespaceStore

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "native")]


@pytest.fixture
def keys(tmp_path):
    return Keys(tmp_path / "keys")


@pytest.fixture
def store(tmp_path, keys):
    """The store of namespaces."""
    return NamespaceStore(tmp_path / "store", keys)
