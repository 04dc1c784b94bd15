"""A pool of threads with work in it that is not done."""

# %% setup
import threading
from concurrent.futures import ThreadPoolExecutor

pool_gate = threading.Event()
pool_it = ThreadPoolExecutor(2)
pool_futures = [pool_it.submit(lambda n=n: pool_gate.wait() and n * n) for n in range(5)]

# %% change
pool_gate.set()
[f.result() for f in pool_futures]

# %% check
assert not any(f.done() for f in pool_futures)
pool_gate.set()
assert [f.result(5) for f in pool_futures] == [0, 1, 4, 9, 16]
