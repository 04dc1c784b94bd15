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
at_random = new(P); libc.madvise(at_random, P, 1); put(at_random, b"random")
in_turn = new(P); libc.madvise(in_turn, P, 2); put(in_turn, b"turn")
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
            get(at_random, 6), line(at_random), get(in_turn, 4), line(in_turn),
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
        woken = load(images, again, world, again=True).wake()
        assert woken.value("look()") == expected
        assert woken.value("hidden()") == "hidden"


SETTINGS = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
GET_POLICY, SET_POLICY, BIND_MEMORY = {"x86_64": (239, 238, 237)}.get(
    os.uname().machine, (236, 237, 235))
SET_DISK, GET_DISK = {"x86_64": (251, 252)}.get(os.uname().machine, (30, 31))
def call(number, *given):
    return libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, given))
def pointer(one): return ctypes.addressof(one)
nodes, mode = ctypes.c_ulong(1), ctypes.c_int()
def policy(at=0):
    if call(GET_POLICY, pointer(mode), 0, 0, at, 2 if at else 0): return "none here"
    return mode.value
libc.mmap.restype = ctypes.c_void_p
bound = libc.mmap(None, ctypes.c_size_t(65536), 3, 0x22, -1, ctypes.c_long(0))
call(BIND_MEMORY, bound, 65536, 2, pointer(nodes), 64, 0)
call(SET_POLICY, 1, pointer(nodes), 64)
PRCTL = {"keep capabilities": (7, 8), "machine checks": (34, 33), "merge": (68, 67)}
libc.prctl(8, 1, 0, 0, 0); libc.prctl(33, 1, 1, 0, 0); libc.prctl(67, 1, 0, 0, 0)
libc.prctl(4, 0, 0, 0, 0)
with open("/proc/self/status") as f: f.read()
call(SET_DISK, 1, 0, 2 << 13 | 6)
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)); os.nice(2)
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
def capabilities():
    found = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, found) == 0
    return list(found)
less = (ctypes.c_uint32 * 6)(*capabilities()); less[0] = less[3] = 0
assert libc.capset(header, less) == 0
def look():
    return [policy(), policy(bound), libc.prctl(3, 0, 0, 0, 0),
            {n: libc.prctl(get, 0, 0, 0, 0) for n, (get, _) in PRCTL.items()},
            call(GET_DISK, 1, 0), os.sched_getscheduler(0), os.nice(0), capabilities(),
            os.getresuid(), os.getresgid(), os.getgroups()]
"""


def test_settings_of_the_process(any_world: World, images: Images) -> None:
    """What a program that is executed does not have; nor is it hindered by being undumpable."""
    live = any_world.start(SETTINGS)
    expected = live.value("look()")
    assert expected[2] == 0
    frozen = live.freeze()
    live.kill()
    woken = frozen.wake()
    assert woken.value("look()") == expected
    kind = any_world.kind
    written = images.write(woken.freeze())
    any_world.close()
    with another(kind) as world:
        assert load(images, written, world).wake().value("look()") == expected


FILTERED = """
import ctypes, struct
libc = ctypes.CDLL(None)
allow = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7fff0000))  # BPF_RET, allow
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 1, ctypes.addressof(allow)))
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, program, 0, 0) == 0
"""


def test_a_filter_that_is_lost_is_named(any_world: World, images: Images) -> None:
    frozen = any_world.start(FILTERED).freeze()
    written = images.write(frozen)
    kind = any_world.kind
    any_world.close()
    with another(kind) as world:
        _, loaded = images.load_closely(written.ref, world)
        assert any("seccomp" in note.subject for note in loaded.not_captured)
