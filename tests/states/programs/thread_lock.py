"""A thread that waits for a lock."""

# %% setup
import threading

lock_it = threading.Lock()
lock_it.acquire()
lock_got = []


def lock_wait():
    with lock_it:
        lock_got.append(threading.get_native_id())


lock_thread = threading.Thread(target=lock_wait, daemon=True)
lock_thread.start()
lock_id = lock_thread.native_id

# %% change
lock_it.release()
lock_thread.join()

# %% check
assert lock_thread.is_alive() and not lock_got
lock_it.release()
lock_thread.join(5)
assert lock_got == [lock_id]
