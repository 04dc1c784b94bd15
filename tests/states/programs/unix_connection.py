"""A connection over a Unix socket from the process to itself, and one of whole messages."""

# named: datagrams
# dmtcp: a socket of whole messages whose other end is shut would end the process, so it is refused
# apart: dmtcp

# %% setup
import socket

within_server = socket.socket(socket.AF_UNIX)
within_server.bind(f"\0tt-states-within-{id(within_server)}")
within_server.listen()
within_client = socket.socket(socket.AF_UNIX)
within_client.connect(within_server.getsockname())
within_accepted, _ = within_server.accept()
within_client.sendall(b"stream")
within_packets = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
[within_packets[0].send(message) for message in (b"first", b"second")]
within_packets[0].shutdown(socket.SHUT_WR)

# %% change
within_accepted.recv(99)

# %% check
assert within_accepted.recv(99) == b"stream"
within_accepted.sendall(b"back")
assert within_client.recv(99) == b"back"
assert [within_packets[1].recv(99) for _ in range(3)] == [b"first", b"second", b""]
within_packets[1].send(b"back")
assert within_packets[0].recv(99) == b"back"
