"""Options of sockets: of IP, of UDP, of TCP by name, and a filter of packets."""

# named: option|filter

# %% setup
import ctypes
import socket
import struct

many_tcp, many_udp, many_six = socket.socket(), socket.socket(type=socket.SOCK_DGRAM), None
many_wanted = [
    (many_udp, socket.SOL_SOCKET, 35, 1),  # SO_TIMESTAMPNS
    (many_udp, socket.SOL_SOCKET, 40, 1),  # SO_RXQ_OVFL
    (many_udp, socket.SOL_SOCKET, 46, 20),  # SO_BUSY_POLL
    (many_udp, socket.IPPROTO_IP, 10, 2),  # IP_MTU_DISCOVER
    (many_udp, socket.IPPROTO_IP, 11, 1),  # IP_RECVERR
    (many_udp, socket.IPPROTO_IP, 15, 1),  # IP_FREEBIND
    (many_udp, socket.IPPROTO_IP, 21, 5),  # IP_MINTTL
    (many_udp, socket.IPPROTO_IP, 24, 1),  # IP_BIND_ADDRESS_NO_PORT
    (many_udp, socket.IPPROTO_UDP, 103, 1000),  # UDP_SEGMENT
    (many_udp, socket.IPPROTO_UDP, 104, 1),  # UDP_GRO
    (many_tcp, socket.IPPROTO_TCP, 3, 1),  # TCP_CORK
    (many_tcp, socket.IPPROTO_TCP, 7, 3),  # TCP_SYNCNT
    (many_tcp, socket.IPPROTO_TCP, 8, 20),  # TCP_LINGER2
    (many_tcp, socket.IPPROTO_TCP, 25, 12345),  # TCP_NOTSENT_LOWAT
]


def many_set(one, level, option_name, value):
    try:
        one.setsockopt(level, option_name, value)
    except OSError:  # this Linux does not know it, or not for everybody
        return None
    return one.getsockopt(level, option_name)


def many_filter():
    held = ctypes.c_uint32(8)
    room = ctypes.create_string_buffer(64)
    got = ctypes.CDLL(None).getsockopt(
        many_udp.fileno(), socket.SOL_SOCKET, 26, room, ctypes.byref(held)
    )
    return got, held.value, room.raw[:8]


many_expected = [many_set(*one) for one in many_wanted]
many_tcp.setsockopt(socket.IPPROTO_TCP, 13, b"reno")  # TCP_CONGESTION
many_program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0xFFFF), 8)  # all pass
many_udp.setsockopt(
    socket.SOL_SOCKET, 26, struct.pack("HxxxxxxQ", 1, ctypes.addressof(many_program))
)
many_filter_then = many_filter()
assert many_filter_then[:2] == (0, 1), many_filter_then

# %% check
many_now = [
    None if expected is None else one.getsockopt(level, option_name)
    for (one, level, option_name, _), expected in zip(many_wanted, many_expected)
]
assert many_now == many_expected, (many_now, many_expected)
assert many_tcp.getsockopt(socket.IPPROTO_TCP, 13, 16).rstrip(b"\0") == b"reno"
assert many_filter() == many_filter_then, many_filter()
