"""Datagrams between named Unix sockets that nobody has read yet, with their senders' names."""

# named: datagrams
# apart: dmtcp
# dmtcp: with a datagram socket that is connected DMTCP would wait for ever, so it is refused

# %% setup
import socket

letters_in, letters_out = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
letters_name, letters_from = (f"\0tt-states-letters-{n}-{id(letters_in)}" for n in "io")
letters_in.bind(letters_name)
letters_out.bind(letters_from)
letters_out.sendto(b"first", letters_name)
letters_nobody = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
letters_nobody.connect(letters_name)
letters_nobody.send(b"second")
letters_out.sendto(b"third", letters_name)

# %% change
letters_in.recv(99)

# %% check
letters_in.setblocking(False)
assert letters_in.recvfrom(99) == (b"first", letters_from.encode())
assert letters_in.recvfrom(99) == (b"second", None)
assert letters_in.recvfrom(99) == (b"third", letters_from.encode())
letters_nobody.send(b"fourth")
assert letters_in.recv(99) == b"fourth"
