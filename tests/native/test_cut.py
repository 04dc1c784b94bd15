"""Streams are cut by their content."""

from __future__ import annotations

import hashlib
import pathlib
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator

import native_build
import pytest

from kernel_runtime.executor import cutting

KIB = 1024
RANDOM = random.Random(7).randbytes(24 << 20)
EXPECTED = "8a3949ff8fedad13d577222a1f73869f5c970a1f146eedfd06d3783f3f314de2"
"""SHA-256 of what PROGRAM prints. What was stored with one release is found again by the next."""

PROGRAM = """
#include <stdio.h>
#include "timetravel.h"
static unsigned char data[8 << 20];
int main(void) {
  uint32_t x = 1;
  for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)((x = x * 1664525u + 1013904223u) >> 24);
  for (size_t at = 0, n; at < sizeof data; at += n) printf("%zu\\n", n = tt_cut(data + at, sizeof data - at));
}
"""  # noqa: E501


@pytest.fixture(autouse=True)
def fresh_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The library as the sources have it now."""
    monkeypatch.setattr(cutting, "LIBRARY", native_build.built_library())
    cutting._cutter.cache_clear()
    yield
    cutting._cutter.cache_clear()


def pieces(data: bytes) -> list[bytes]:
    return [bytes(piece) for piece in cutting.cut(memoryview(data))]


def test_sizes_and_whole() -> None:
    found = pieces(RANDOM)
    assert b"".join(found) == RANDOM
    sizes = [len(piece) for piece in found]
    assert all(64 * KIB <= size <= 1024 * KIB for size in sizes[:-1])
    assert 180 * KIB < sum(sizes) / len(sizes) < 400 * KIB
    for size in (0, 1, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1):
        assert pieces(RANDOM[:size]) == ([RANDOM[:size]] if size else [])
    assert {len(piece) for piece in pieces(bytes(3 << 20))} == {1024 * KIB}


@pytest.mark.parametrize(
    "change",
    [
        lambda data, at: data[:at] + b"x" + data[at:],
        lambda data, at: data[:at] + data[at + 1 :],
        lambda data, at: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :],
        lambda data, at: data[:at] + RANDOM[:5000] + data[at:],
    ],
    ids=["insert", "delete", "flip", "insert much"],
)
def test_a_change_changes_few_pieces(change: Callable[[bytes, int], bytes]) -> None:
    before = pieces(RANDOM)
    for at in (0, 1, 100_000, len(RANDOM) // 2, len(RANDOM) - 2):
        after = pieces(change(RANDOM, at))
        new = [piece for piece in after if piece not in set(before)]
        assert len(new) <= 4 and len(before) > 60


def test_any_memory_can_be_cut() -> None:
    expected = pieces(RANDOM[: 1 << 20])
    wide = memoryview(bytearray(RANDOM[: 1 << 20])).cast("Q")
    assert [bytes(piece) for piece in cutting.cut(wide)] == expected
    assert all(piece.readonly for piece in cutting.cut(memoryview(RANDOM)[: 1 << 20]))


def test_memory_is_let_go() -> None:
    data = bytearray(RANDOM[: 2 << 20])
    generator = cutting.cut(memoryview(data))
    next(generator)
    generator.close()
    assert sum(len(piece) for piece in cutting.cut(memoryview(data))) == 2 << 20
    data.append(0)  # a BufferError while anybody holds it


@pytest.mark.parametrize("machine", ["this", "aarch64"])
def test_same_on_every_machine(machine: str, tmp_path: pathlib.Path) -> None:
    compiler, run = "cc", []
    if machine == "aarch64":
        compiler, run = "aarch64-linux-gnu-gcc", ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
        for needed in (compiler, run[0]):
            if shutil.which(needed) is None:
                native_build.need(needed)
    source, program = tmp_path / "sizes.c", tmp_path / "sizes"
    source.write_text(PROGRAM)
    native = native_build.NATIVE
    flags = ["-O2", "-std=gnu11", f"-I{native}", "-o", str(program)]
    subprocess.run([compiler, *flags, str(source), str(native / "cut.c")], check=True)
    done = subprocess.run([*run, str(program)], capture_output=True, check=True)
    assert hashlib.sha256(done.stdout).hexdigest() == EXPECTED
