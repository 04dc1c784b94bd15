"""Mutexes of pthreads that are held: robust, recursive, that inherit priority, that check."""

# %% setup
import ctypes
import threading

mutex_libc = ctypes.CDLL(None)
mutex_kinds = {"robust": ("setrobust", 1), "inherit": ("setprotocol", 1)}
mutex_kinds |= {"recursive": ("settype", 1), "check": ("settype", 2)}
mutex_all = {}
for mutex_kind, (mutex_setter, mutex_value) in mutex_kinds.items():
    mutex_attributes = ctypes.create_string_buffer(16)
    mutex_libc.pthread_mutexattr_init(mutex_attributes)
    getattr(mutex_libc, f"pthread_mutexattr_{mutex_setter}")(mutex_attributes, mutex_value)
    mutex_all[mutex_kind] = ctypes.create_string_buffer(64)
    assert mutex_libc.pthread_mutex_init(mutex_all[mutex_kind], mutex_attributes) == 0
    assert mutex_libc.pthread_mutex_lock(mutex_all[mutex_kind]) == 0
assert mutex_libc.pthread_mutex_lock(mutex_all["recursive"]) == 0

# %% change
[mutex_libc.pthread_mutex_unlock(mutex_one) for mutex_one in mutex_all.values()]

# %% check
import errno

mutex_tries = {}


def mutex_try():
    for mutex_one_kind, mutex_one in mutex_all.items():
        mutex_tries[mutex_one_kind] = mutex_libc.pthread_mutex_trylock(mutex_one)


mutex_thread = threading.Thread(target=mutex_try)
mutex_thread.start()
mutex_thread.join(60)
assert mutex_tries == dict.fromkeys(mutex_all, errno.EBUSY), mutex_tries
assert mutex_libc.pthread_mutex_lock(mutex_all["check"]) == errno.EDEADLK
mutex_left = {
    mutex_one_kind: mutex_libc.pthread_mutex_unlock(mutex_one)
    for mutex_one_kind, mutex_one in mutex_all.items()
}
assert mutex_left == dict.fromkeys(mutex_all, 0), mutex_left
assert mutex_libc.pthread_mutex_unlock(mutex_all["recursive"]) == 0
