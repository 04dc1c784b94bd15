"""A timer of timer_create(2)."""

# %% setup
import ctypes
import signal

# a lock, as that of a threading.Event, would be waited for by the handler that interrupts its owner
posix_fired = []
signal.signal(signal.SIGRTMIN + 7, lambda number, frame: posix_fired.append(number))


class PosixEvent(ctypes.Structure):
    _fields_ = [
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    ]


posix_libc = ctypes.CDLL(None)
posix_id = ctypes.c_void_p()
posix_event = PosixEvent(None, signal.SIGRTMIN + 7, 0)
assert posix_libc.timer_create(1, ctypes.byref(posix_event), ctypes.byref(posix_id)) == 0
posix_spec = (ctypes.c_long * 4)(0, 20_000_000, 0, 20_000_000)
assert posix_libc.timer_settime(posix_id, 0, posix_spec, None) == 0

# %% check
import time

posix_fired.clear()
posix_end = time.monotonic() + 20
while not posix_fired and time.monotonic() < posix_end:
    time.sleep(0.005)
assert posix_fired
assert posix_libc.timer_delete(posix_id) == 0
