"""A large array, and a view of it."""

# needs: numpy

# %% setup
import numpy as np

large_array = np.arange(16_000_000, dtype="i8")
large_view = large_array[::1000]
large_sum = int(large_array.sum())

# %% change
large_array[:] = 0

# %% check
assert int(large_array.sum()) == large_sum and large_view.base is large_array
large_array[0] = 9
assert large_view[0] == 9
