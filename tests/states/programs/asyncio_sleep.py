"""Tasks of asyncio: one in a sleep, one that waits for the other."""

# %% setup
import asyncio


async def asyncio_sleeper():
    await asyncio.sleep(0.3)
    return "slept"


async def asyncio_waiter():
    return "waited, " + await asyncio_first


asyncio_first = asyncio.ensure_future(asyncio_sleeper())
asyncio_second = asyncio.ensure_future(asyncio_waiter())

# %% check
assert await asyncio_second == "waited, slept"
