"""A socket to the kernel (netlink), which belongs to a group."""

# named: netlink socket

# %% setup
import socket
import struct

netlink_socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
netlink_socket.bind((0, 1))
netlink_name = netlink_socket.getsockname()

# %% check
assert netlink_socket.getsockname() == netlink_name
netlink_socket.settimeout(60)
netlink_socket.send(struct.pack("IHHIIBxxx", 20, 18, 0x301, 1, 0, 0))  # which interfaces there are
assert netlink_socket.recv(65536)
