"""Settings of a thread: processors, nice value, priority at the disk, slack, stack for signals."""

# named: single threads

# %% setup
import ctypes
import os
import queue
import threading

each_libc = ctypes.CDLL(None)
each_libc.syscall.restype = ctypes.c_long
each_numbers = (251, 252, 131) if os.uname().machine == "x86_64" else (30, 31, 132)
each_memory = ctypes.create_string_buffer(1 << 16)
each_asked, each_told = queue.SimpleQueue(), queue.SimpleQueue()


class EachStack(ctypes.Structure):
    _fields_ = [("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]


def each_settings():
    each_now = EachStack()
    each_libc.sigaltstack(None, ctypes.byref(each_now))
    return (
        sorted(os.sched_getaffinity(0)),
        os.getpriority(os.PRIO_PROCESS, 0),
        each_libc.syscall(each_numbers[1], 1, 0),
        each_libc.prctl(30, 0, 0, 0, 0),
        each_now.sp,
        each_now.size,
    )


def each_work():
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.setpriority(os.PRIO_PROCESS, 0, each_nice)
    each_libc.syscall(each_numbers[0], 1, 0, 2 << 13 | 5)
    each_libc.prctl(29, 777777, 0, 0, 0)
    each_stack = EachStack(ctypes.addressof(each_memory), 0, 1 << 16)
    each_libc.sigaltstack(ctypes.byref(each_stack), None)
    while True:
        each_told.put(each_settings())
        each_asked.get()


each_nice = min(os.getpriority(os.PRIO_PROCESS, 0) + 7, 19)
each_thread = threading.Thread(target=each_work, daemon=True)
each_thread.start()
each_expected = each_told.get(timeout=60)
assert each_expected[1:4] == (each_nice, 2 << 13 | 5, 777777), each_expected

# %% check
each_asked.put(None)
each_found = each_told.get(timeout=60)
assert each_found == each_expected, (each_found, each_expected)
