"""Datagrams of UDP that nobody has read yet."""

# named: datagram

# %% setup
import socket

unread_bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
unread_bound.bind(("127.0.0.1", 0))
unread_sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
unread_sender.sendto(b"waits", unread_bound.getsockname())

# %% check
unread_bound.setblocking(False)
assert unread_bound.recv(9) == b"waits"
