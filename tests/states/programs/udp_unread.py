"""Datagrams of UDP from the process to itself that nobody has read yet, with their senders."""

# named: datagram
# dmtcp: with a datagram socket that is connected DMTCP would wait for ever, so it is refused
# apart: dmtcp

# %% setup
import socket

unread_bound, unread_sender, unread_other = (
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3)
)
unread_bound.bind(("127.0.0.1", 0))
unread_sender.sendto(b"waits", unread_bound.getsockname())
unread_other.connect(unread_bound.getsockname())
unread_other.send(b"waits too")
unread_sender.sendto(b"last", unread_bound.getsockname())
unread_from = [s.getsockname()[1] for s in (unread_sender, unread_other, unread_sender)]

# %% change
unread_bound.recv(9)

# %% check
unread_bound.setblocking(False)
unread_got = [unread_bound.recvfrom(9) for _ in range(3)]
assert [data for data, _ in unread_got] == [b"waits", b"waits too", b"last"]
assert [sender[1] for _, sender in unread_got] == unread_from
