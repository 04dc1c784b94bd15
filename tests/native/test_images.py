"""Images: a frozen process is written, everything is killed, and it goes on in another world."""

from __future__ import annotations

from pathlib import Path

import native_build
import pytest
from image_tools import Images
from native_harness import World

COUNTING = """
import threading, time
n = 0
def count():
    global n
    while True:
        n += 1; time.sleep(.001)
for i in range(3):
    threading.Thread(target=count, daemon=True).start()
def counts():
    before = n; until = time.monotonic() + 20
    while n == before and time.monotonic() < until:
        time.sleep(.002)
    return n > before
def numbers():
    for i in range(10**9): yield i
half = numbers(); [next(half) for _ in range(5)]
import os
"""


@pytest.fixture
def images(tmp_path: Path) -> Images:
    return Images(tmp_path)


def another(kind: str) -> World:
    return World(kind, native_build.built_library(), native_build.built_states())


def test_it_goes_on(any_world: World, images: Images) -> None:
    live = any_world.start(COUNTING)
    frozen = live.freeze()
    written = images.write(frozen)
    print(written)
    assert live.value("counts()")
    pid = live.pid
    any_world.close()
    world = another(any_world.kind)
    try:
        loaded = images.load(written.ref, world)
        for _ in range(2):
            woken = loaded.wake()
            assert woken.value("counts()")
            assert woken.value("next(half)") == 5
            assert woken.value("os.getpid()") == pid or any_world.kind.endswith("plain")
            woken.kill()
    finally:
        world.close()
