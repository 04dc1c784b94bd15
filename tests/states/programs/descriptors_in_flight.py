"""Descriptors that were sent over a Unix socket and not received yet (SCM_RIGHTS)."""

# named: fds_in_flight|its queue|sent and not received

# %% setup
import os
import socket

flight_pair = socket.socketpair()
flight_read, flight_write = os.pipe()
os.write(flight_write, b"by descriptor")
socket.send_fds(flight_pair[0], [b"take it"], [flight_read])
os.close(flight_read)

# %% check
flight_pair[1].setblocking(False)
flight_data, flight_fds, _, _ = socket.recv_fds(flight_pair[1], 99, 4)
assert flight_data == b"take it"
assert os.read(flight_fds[0], 99) == b"by descriptor"
