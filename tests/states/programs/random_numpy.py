"""Streams of numpy's random numbers: they go on exactly."""

# needs: numpy

# %% setup
import numpy as np

np.random.seed(42)
np_generator = np.random.default_rng(7)
np_copy = np.random.RandomState()
np_copy.set_state(np.random.get_state())
np_other = np.random.default_rng()
np_other.bit_generator.state = np_generator.bit_generator.state
np_expected = [np_copy.rand(), np_other.random()]

# %% change
np.random.rand(), np_generator.random()

# %% check
assert [np.random.rand(), np_generator.random()] == np_expected
