"""Connections that wait to be accepted: over TCP and a Unix socket."""

# named: accepted

# %% setup
import socket

backlog_servers = [socket.socket(), socket.socket(socket.AF_UNIX)]
backlog_servers[0].bind(("127.0.0.1", 0))
backlog_servers[1].bind(f"\0tt-states-backlog-{id(backlog_servers)}")
backlog_clients = [socket.socket(), socket.socket(socket.AF_UNIX)]
for backlog_server, backlog_client in zip(backlog_servers, backlog_clients):
    backlog_server.listen(5)
    backlog_client.connect(backlog_server.getsockname())
    backlog_client.sendall(b"hello")
    backlog_client.close()

# %% check
for backlog_server in backlog_servers:
    backlog_server.settimeout(1)
    assert backlog_server.accept()[0].recv(9) == b"hello"
