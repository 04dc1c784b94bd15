"""Threads of a BLAS."""

# needs: numpy

# %% setup
import numpy as np

blas_a = np.random.default_rng(1).random((700, 700))
blas_before = blas_a @ blas_a

# %% change
blas_a[:] = 0

# %% check
assert np.array_equal(blas_a @ blas_a, blas_before)
