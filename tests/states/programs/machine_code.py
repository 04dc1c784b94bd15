"""Code that was made at run time: a page of it, a callback that C calls."""

# %% setup
import ctypes
import mmap
import os

code_bytes = {"x86_64": b"\xb8\x2a\0\0\0\xc3"}.get(
    os.uname().machine, b"\x40\x05\x80\x52\xc0\x03\x5f\xd6"
)
code_page = mmap.mmap(
    -1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ | mmap.PROT_WRITE
)
code_page[: len(code_bytes)] = code_bytes
code_at = ctypes.addressof(ctypes.c_char.from_buffer(code_page))
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(code_at), ctypes.c_size_t(4096), 5) == 0
code_answer = ctypes.CFUNCTYPE(ctypes.c_int)(code_at)
code_compare = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.POINTER(ctypes.c_int)] * 2)(
    lambda a, b: a[0] - b[0]
)

# %% check
assert code_answer() == 42
code_sorted = (ctypes.c_int * 3)(3, 1, 2)
ctypes.CDLL(None).qsort(code_sorted, 3, 4, code_compare)
assert list(code_sorted) == [1, 2, 3]
