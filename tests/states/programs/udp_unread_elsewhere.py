"""A datagram of UDP from a socket that is closed, which nobody has read yet."""

# named: datagram

# %% setup
import socket

orphan_bound, orphan_sender = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
orphan_bound.bind(("127.0.0.1", 0))
orphan_sender.sendto(b"waits", orphan_bound.getsockname())
orphan_sender.close()

# %% check
orphan_bound.setblocking(False)
assert orphan_bound.recv(9) == b"waits"
