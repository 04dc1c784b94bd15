"""A server on a Unix socket: others can connect."""

# %% setup
import os
import socket
import tempfile

unix_path = os.path.join(tempfile.mkdtemp(dir="/tmp"), "s")
unix_server = socket.socket(socket.AF_UNIX)
unix_server.bind(unix_path)
unix_server.listen()

# %% check
unix_client = socket.socket(socket.AF_UNIX)
unix_client.settimeout(60)
unix_client.connect(unix_path)
unix_server.settimeout(60)
unix_accepted, _ = unix_server.accept()
unix_client.sendall(b"hello")
assert unix_accepted.recv(9) == b"hello"
unix_server.close()
