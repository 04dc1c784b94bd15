"""Threads in select, poll, epoll, a read, accept, flock and sigwait."""

# named: lock:

# %% setup
import fcntl
import os
import select
import signal
import socket
import threading

waits_pipes = [os.pipe() for _ in range(4)]
waits_poll, waits_epoll = select.poll(), select.epoll()
waits_poll.register(waits_pipes[1][0], select.POLLIN)
waits_epoll.register(waits_pipes[2][0], select.EPOLLIN)
waits_server = socket.create_server(("127.0.0.1", 0))
waits_files = [open("waits.lock", "w") for _ in range(2)]
fcntl.flock(waits_files[0], fcntl.LOCK_EX)
waits_signal = signal.SIGRTMIN + 12
signal.pthread_sigmask(signal.SIG_BLOCK, {waits_signal})
waits_found = {}
waits_calls = {
    "select": lambda: select.select([waits_pipes[0][0]], [], [])[0] == [waits_pipes[0][0]],
    "poll": lambda: waits_poll.poll() == [(waits_pipes[1][0], select.POLLIN)],
    "epoll": lambda: waits_epoll.poll() == [(waits_pipes[2][0], select.EPOLLIN)],
    "read": lambda: os.read(waits_pipes[3][0], 9) == b"x",
    "accept": lambda: waits_server.accept()[0].recv(9) == b"x",
    "flock": lambda: fcntl.flock(waits_files[1], fcntl.LOCK_EX) is None,
    "sigwait": lambda: signal.sigwait({waits_signal}) == waits_signal,
}
waits_threads = {
    waits_kind: threading.Thread(
        target=lambda waits_kind=waits_kind: waits_found.update(
            {waits_kind: waits_calls[waits_kind]()}
        ),
        daemon=True,
    )
    for waits_kind in waits_calls
}
[thread.start() for thread in waits_threads.values()]

# %% check
assert waits_found == {}, waits_found
[os.write(pipe[1], b"x") for pipe in waits_pipes]
waits_client = socket.create_connection(waits_server.getsockname(), timeout=60)
waits_client.sendall(b"x")
fcntl.flock(waits_files[0], fcntl.LOCK_UN)
signal.pthread_kill(waits_threads["sigwait"].ident, waits_signal)
[thread.join(60) for thread in waits_threads.values()]
assert waits_found == dict.fromkeys(waits_calls, True), waits_found
