"""An alternate stack for signals."""

# %% setup
import ctypes


class AltStack(ctypes.Structure):
    _fields_ = [("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]


altstack_memory = ctypes.create_string_buffer(65536)
altstack_libc = ctypes.CDLL(None)
altstack_set = AltStack(ctypes.addressof(altstack_memory), 0, 65536)
assert altstack_libc.sigaltstack(ctypes.byref(altstack_set), None) == 0

# %% change
altstack_libc.sigaltstack(ctypes.byref(AltStack(None, 2, 0)), None)

# %% check
altstack_now = AltStack()
altstack_libc.sigaltstack(None, ctypes.byref(altstack_now))
assert (altstack_now.sp, altstack_now.size) == (altstack_set.sp, 65536)
