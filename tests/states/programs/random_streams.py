"""Streams of random numbers: they go on exactly."""

# %% setup
import random

random.seed(42)
random_own = random.Random(7)
random_own.random(), random.random()
random_expected = (random.Random(), random.Random())
random_expected[0].setstate(random.getstate())
random_expected[1].setstate(random_own.getstate())
random_expected = [r.random() for r in random_expected]

# %% change
random.random(), random_own.random()

# %% check
assert [random.random(), random_own.random()] == random_expected
