"""Kinds of memory in an image: each comes back as it was, or is listed in docs/native.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from image_tools import Images, another, load
from native_harness import World

KINDS = """
import ctypes, mmap, os, tempfile
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
i, l, p = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
libc.mmap.argtypes = [p, l, i, i, i, ctypes.c_long]
for f in (libc.mprotect, libc.madvise):
    f.argtypes = [p, l, i]
R, W, X = 1, 2, 4
PRIVATE, FIXED, ANONYMOUS, GROWSDOWN, NORESERVE = 2, 0x10, 0x20, 0x100, 0x4000
P = 4096
def new(size, prot=R | W, flags=PRIVATE | ANONYMOUS, fd=-1, offset=0):
    at = libc.mmap(None, size, prot, flags, fd, offset)
    assert at not in (None, 2**64 - 1)
    return at
def put(at, data): ctypes.memmove(at, data, len(data))
def get(at, n=8): return ctypes.string_at(at, n).decode("latin-1")
def line(at, wanted="VmFlags"):
    with open("/proc/self/smaps") as f:
        found = False
        for text in f:
            head = text.split("-")[0]
            if text[0] in "0123456789abcdef":
                low, high = (int(v, 16) for v in text.split()[0].split("-"))
                found = low <= at < high
                if found and wanted == "head": return text.split()[1]
            elif found and text.startswith(wanted):
                return sorted(set(text.split()[1:]) - {"sd", "ac"})
def fails(at):
    "Whether a byte there cannot be read: tried by the kernel."
    r, w = os.pipe()
    try: return libc.write(w, ctypes.c_void_p(at), 1) < 0
    finally: os.close(r); os.close(w)

sparse = new(1 << 40, flags=PRIVATE | ANONYMOUS | NORESERVE); put(sparse + (1 << 39), b"far away")
none = new(4 * P); put(none, b"hidden"); assert libc.mprotect(none, 4 * P, 0) == 0
reserved = new(1 << 30, prot=0)
code = new(P); put(code, b"code here"); libc.mprotect(code, P, R | X)
down = new(4 * P, flags=PRIVATE | ANONYMOUS | GROWSDOWN); put(down, b"down")
huge = new(8 << 20); libc.madvise(huge, 8 << 20, 14); put(huge + (4 << 20), b"huge" * 1000)
small = new(P * 4); libc.madvise(small, P * 4, 15); put(small, b"small")
wiped = new(P); libc.madvise(wiped, P, 18); put(wiped, b"wiped")
undumped = new(P); libc.madvise(undumped, P, 16); put(undumped, b"undumped")
path = FOLDER + "/file"
with open(path, "wb") as f: f.write(b"".join(b"page %d." % i + bytes(P - 7) for i in range(8)))
fd = os.open(path, os.O_RDONLY)
of_file = new(8 * P, fd=fd, flags=PRIVATE)
put(of_file + 2 * P, bytes(P)); put(of_file + 3 * P, b"written")
past_end = new(16 * P, fd=fd, flags=PRIVATE, prot=R)
with open(path + "2", "wb") as f: f.write(b"deleted." + bytes(3 * P))
fd2 = os.open(path + "2", os.O_RDONLY)
gone = new(8 * P, fd=fd2, flags=PRIVATE); put(gone + P, b"written")
os.unlink(path + "2")
memfd = os.memfd_create("private"); os.write(memfd, b"in memfd" + bytes(P))
of_memfd = new(P, fd=memfd, flags=PRIVATE)
os.close(fd); os.close(fd2); os.close(memfd)
guarded = new(4 * P); put(guarded, b"guarded")
has_guard = libc.madvise(guarded + P, P, 102) == 0
full = new(1 << 20)
put(full, b"x" * (1 << 20)); put(full + (1 << 19), bytes(1 << 16))
block = bytearray(16 << 20); block[:5] = b"block"; block[-4:] = b"last"
def look():
    return [get(sparse + (1 << 39)), get(sparse), line(none, "head"), line(reserved, "head"),
            get(code, 9), line(code, "head"), get(down, 4), line(down),
            get(huge + (4 << 20) + 3996, 4), line(huge), get(small, 5), line(small),
            line(wiped), get(wiped, 5), get(undumped), line(undumped),
            [get(of_file + i * P, 7) for i in range(8)], line(of_file, "head"),
            get(past_end + 7 * P, 7), fails(past_end + 8 * P),
            get(gone), get(gone + P, 7), fails(gone + 7 * P) is not None, get(of_memfd),
            get(guarded, 7), has_guard and fails(guarded + P), fails(guarded + 2 * P),
            get(full, 4), get(full + (1 << 19), 4), get(full + (1 << 19) + (1 << 16), 4),
            bytes(block[:5]).decode(), bytes(block[-4:]).decode(), sum(block)]
def hidden():
    libc.mprotect(none, 4 * P, R); return get(none, 6)
"""


@pytest.fixture
def images(tmp_path: Path) -> Images:
    return Images(tmp_path / "store")


def test_kinds_of_memory(any_world: World, images: Images, folder: Path) -> None:
    live = any_world.start(f"FOLDER = {str(folder)!r}\n{KINDS}")
    frozen = live.freeze()
    expected = frozen.wake().value("look()") if any_world.kind.endswith("plain") else None
    live.run("import os")
    if expected is None:
        live.kill()
        woken = frozen.wake()
        expected = woken.value("look()")
        woken.kill()
    first = images.write(frozen)
    # the terabyte is not read, nor are mapped libraries stored
    assert first.bytes < 64 << 20
    kind = any_world.kind
    any_world.close()
    with another(kind) as world:
        woken = load(images, first, world).wake()
        found = woken.value("look()")
        # a growing stack and memory of deleted files are anonymous memory all the same
        assert found == expected
        again = images.write(woken.freeze(), first)
        assert woken.value("hidden()") == "hidden"
        assert again.stored_bytes < 6 << 20
    with another(kind) as world:
        woken = load(images, again, world).wake()
        assert woken.value("look()") == expected
        assert woken.value("hidden()") == "hidden"
