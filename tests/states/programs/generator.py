"""A generator, half consumed."""


# %% setup
def generator_numbers():
    for number in range(1_000_000):
        yield number * 2


generator_half = generator_numbers()
generator_seen = [next(generator_half) for _ in range(5)]

# %% change
next(generator_half)

# %% check
assert next(generator_half) == 10
