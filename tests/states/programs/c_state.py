"""State of C: memory of malloc's, static data, a stream of stdio with a buffer."""

# %% setup
import ctypes

c_libc = ctypes.CDLL(None)
c_libc.malloc.restype = c_libc.strtok.restype = c_libc.fopen.restype = ctypes.c_void_p
c_block = c_libc.malloc(ctypes.c_size_t(64))
ctypes.memmove(c_block, b"from malloc", 12)
c_text = ctypes.create_string_buffer(b"one two three")
c_libc.strtok(c_text, b" ")
c_libc.srand(42)
c_stream = ctypes.c_void_p(c_libc.fopen(b"stdio.txt", b"w"))
c_libc.fputs(b"buffered by C", c_stream)
c_callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda n: n * 2)

# %% change
c_libc.rand()
ctypes.memmove(c_block, b"changed", 8)

# %% check
assert ctypes.string_at(c_block) == b"from malloc"
assert ctypes.string_at(c_libc.strtok(None, b" ")) == b"two"
c_next = c_libc.rand()
c_libc.srand(42)
assert c_libc.rand() == c_next
c_libc.fflush(c_stream)
assert open("stdio.txt").read() == "buffered by C"
assert c_callback(21) == 42
