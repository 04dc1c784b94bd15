"""Advice on how memory will be used, dumped and inherited."""

# named: advice about memory

# %% setup
import ctypes
import mmap

use_maps = []
for use_advice in (mmap.MADV_RANDOM, mmap.MADV_SEQUENTIAL, mmap.MADV_DONTDUMP, 18):
    use_one = mmap.mmap(-1, 65536, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    use_one[:4] = b"used"
    use_one.madvise(use_advice)
    use_maps.append(use_one)


def use_flags():
    use_found = {}
    for use_row in open("/proc/self/smaps"):
        if use_row[0] in "0123456789abcdef":
            use_head = [int(part, 16) for part in use_row.split()[0].split("-")]
        elif use_row.startswith("VmFlags:"):
            use_found[tuple(use_head)] = set(use_row.split()[1:]) & {"rr", "sr", "dd", "wf"}
    places = [ctypes.addressof(ctypes.c_char.from_buffer(use_each)) for use_each in use_maps]
    return [flags for use_at in places for (a, b), flags in use_found.items() if a <= use_at < b]


use_expected = use_flags()

# %% change
use_maps[0].madvise(mmap.MADV_NORMAL)

# %% check
assert use_expected == [{"rr"}, {"sr"}, {"dd"}, {"wf"}], use_expected
assert use_flags() == use_expected
assert [bytes(use_each[:4]) for use_each in use_maps[:3]] == [b"used"] * 3
