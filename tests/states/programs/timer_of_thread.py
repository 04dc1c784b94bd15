"""A timer of timer_create(2) that signals one thread, and what it has counted meanwhile."""

# dmtcp: the system call does not know the ids that threads have there
# apart: dmtcp

# %% setup
import ctypes
import os
import signal
import threading
import time

aimed_libc = ctypes.CDLL(None)
aimed_libc.syscall.restype = ctypes.c_long
aimed_numbers = (222, 223, 226) if os.uname().machine == "x86_64" else (107, 110, 111)
aimed_ids, aimed_ready = [], threading.Event()


class AimedEvent(ctypes.Structure):
    _fields_ = [
        ("value", ctypes.c_uint64),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("tid", ctypes.c_int),
        ("rest", ctypes.c_char * 44),
    ]


def aimed_wait():
    aimed_signal = signal.SIGRTMIN + 9
    signal.pthread_sigmask(signal.SIG_BLOCK, [aimed_signal])
    aimed_ids.append(threading.get_native_id())
    aimed_ready.set()
    while True:
        aimed_caught = signal.sigtimedwait([aimed_signal], 60)
        if aimed_caught is not None:
            aimed_got.append(threading.get_native_id())


aimed_got = []
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 9])
aimed_thread = threading.Thread(target=aimed_wait, daemon=True)
aimed_thread.start()
assert aimed_ready.wait(60)
aimed_timer = ctypes.c_int()
aimed_event = AimedEvent(7, signal.SIGRTMIN + 9, 4, aimed_ids[0])
assert (
    aimed_libc.syscall(aimed_numbers[0], 1, ctypes.byref(aimed_event), ctypes.byref(aimed_timer))
    == 0
)
aimed_spec = (ctypes.c_long * 4)(0, 20_000_000, 0, 20_000_000)
assert aimed_libc.syscall(aimed_numbers[1], aimed_timer.value, 0, aimed_spec, None) == 0

# %% check
aimed_got.clear()
aimed_end = time.monotonic() + 20
while not aimed_got and time.monotonic() < aimed_end:
    time.sleep(0.005)
assert set(aimed_got) == {aimed_thread.native_id} == set(aimed_ids), (aimed_got, aimed_ids)
assert aimed_libc.syscall(aimed_numbers[2], aimed_timer.value) == 0
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGRTMIN + 9])
