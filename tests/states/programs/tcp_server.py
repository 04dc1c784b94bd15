"""A server on a port: others can connect."""

# %% setup
import socket

tcp_server = socket.create_server(("127.0.0.1", 0))
tcp_port = tcp_server.getsockname()[1]

# %% check
tcp_client = socket.create_connection(("127.0.0.1", tcp_port), timeout=60)
tcp_server.settimeout(60)
tcp_accepted, _ = tcp_server.accept()
tcp_client.sendall(b"hello")
assert tcp_accepted.recv(9) == b"hello"
tcp_server.close()
