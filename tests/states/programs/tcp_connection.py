"""A connection over TCP from the process to itself."""

# named: connection

# %% setup
import socket

loopback_server = socket.create_server(("127.0.0.1", 0))
loopback_client = socket.create_connection(loopback_server.getsockname())
loopback_accepted, _ = loopback_server.accept()
loopback_client.sendall(b"under way")

# %% check
loopback_accepted.settimeout(60)
assert loopback_accepted.recv(99) == b"under way"
loopback_client.sendall(b"again")
assert loopback_accepted.recv(99) == b"again"
