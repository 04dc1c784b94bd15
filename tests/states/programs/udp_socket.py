"""A socket of UDP that is bound: it is again."""

# %% setup
import socket

udp_bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp_bound.bind(("127.0.0.1", 0))
udp_port = udp_bound.getsockname()[1]

# %% check
udp_bound.settimeout(60)
udp_sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp_sender.sendto(b"hello", ("127.0.0.1", udp_port))
assert udp_bound.recv(9) == b"hello"
