"""Four pieces hashed at once have the names that the store gives them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import native_build
import pytest

from kernel_runtime import hashing
from kernel_runtime.store.digests import digest_of

RANDOM = random.Random(8).randbytes(1 << 20)


@pytest.fixture(autouse=True)
def fresh_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The library as the sources have it now."""
    monkeypatch.setattr(hashing, "LIBRARY", native_build.built_library())
    hashing._four.cache_clear()
    yield
    hashing._four.cache_clear()


@pytest.mark.parametrize("size", [128, 256, 4096, 128 * 77, 1 << 18])
@pytest.mark.parametrize("count", [1, 4, 7, 8])
def test_same_names_as_the_store(size: int, count: int) -> None:
    starts = [(at * 1_001) % (len(RANDOM) - size) for at in range(count)]  # at no alignment
    pieces = [memoryview(RANDOM)[at : at + size] for at in starts]
    assert hashing.digests(pieces) == [digest_of(piece) for piece in pieces]


def test_other_sizes_and_memory_that_can_be_written() -> None:
    whole = memoryview(bytearray(RANDOM))
    for sizes in ([128, 128, 128, 256], [0, 0, 0, 0], [100] * 4, [1 << 18] * 3 + [5]):
        pieces = [whole[:size] for size in sizes]
        assert hashing.digests(pieces) == [digest_of(piece) for piece in pieces]
    assert hashing.digests([]) == []


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "LIBRARY", "/nowhere/lib.so")
    pieces = [memoryview(RANDOM)[:4096]] * 4
    assert hashing.digests(pieces) == [digest_of(RANDOM[:4096])] * 4
