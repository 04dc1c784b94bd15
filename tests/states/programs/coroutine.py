"""A coroutine that is suspended in the middle."""

# %% setup
import types


@types.coroutine
def coroutine_pause(value):
    return (yield value)


async def coroutine_steps():
    first = await coroutine_pause("one")
    return first + await coroutine_pause("two")


coroutine_it = coroutine_steps()
coroutine_step = coroutine_it.send(None)

# %% check
assert coroutine_it.send("a") == "two"
try:
    coroutine_it.send("b")
except StopIteration as coroutine_end:
    coroutine_result = coroutine_end.value
assert coroutine_result == "ab"
