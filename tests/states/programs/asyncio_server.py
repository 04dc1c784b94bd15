"""A server of asyncio, and a loop in a thread of its own."""

# %% setup
import asyncio
import threading


async def asyncio_serve(reader, writer):
    writer.write((await reader.readline()).upper())
    await writer.drain()
    writer.close()


asyncio_loop = asyncio.new_event_loop()
asyncio_thread = threading.Thread(target=asyncio_loop.run_forever, daemon=True)
asyncio_thread.start()
asyncio_server = asyncio.run_coroutine_threadsafe(
    asyncio.start_server(asyncio_serve, "127.0.0.1", 0), asyncio_loop
).result()
asyncio_port = asyncio_server.sockets[0].getsockname()[1]

# %% check
import socket

with socket.create_connection(("127.0.0.1", asyncio_port), timeout=60) as asyncio_client:
    asyncio_client.settimeout(60)
    asyncio_client.sendall(b"hello\n")
    assert asyncio_client.recv(9) == b"HELLO\n"
