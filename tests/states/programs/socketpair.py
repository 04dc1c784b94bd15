"""Socket pairs within the process, with messages under way."""

# named: datagrams
# apart: dmtcp

# %% setup
import socket

pair_stream = socket.socketpair()
pair_stream[0].sendall(b"stream")
pair_packets = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
pair_packets[0].send(b"first")
pair_packets[0].send(b"second")

# %% change
pair_stream[1].recv(99)

# %% check
assert pair_stream[1].recv(99) == b"stream"
assert [pair_packets[1].recv(99) for _ in range(2)] == [b"first", b"second"]
pair_stream[1].sendall(b"back")
assert pair_stream[0].recv(99) == b"back"
