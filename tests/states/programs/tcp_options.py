"""Sockets of TCP with options: two on one port, a backlog for fast opens, timeouts."""

# %% setup
import socket

options_names = (socket.TCP_FASTOPEN, socket.TCP_USER_TIMEOUT, socket.TCP_NODELAY)
options_pair = [socket.socket(), socket.socket()]
for options_one in options_pair:
    options_one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    options_one.bind(("127.0.0.1", 0 if options_one is options_pair[0] else options_port))
    options_port = options_one.getsockname()[1]
    for options_name, options_value in zip(options_names, (5, 12345, 1)):
        options_one.setsockopt(socket.IPPROTO_TCP, options_name, options_value)
    options_one.listen()


def options_all():
    return [
        [s.getsockopt(socket.IPPROTO_TCP, options_each) for options_each in options_names]
        for s in options_pair
    ]


options_expected = options_all()

# %% check
assert options_all() == options_expected
options_clients = [
    socket.create_connection(("127.0.0.1", options_port), timeout=60) for _ in range(8)
]
options_met = 0
while options_met < 8:
    import select

    for options_one in select.select(options_pair, [], [], 60)[0]:
        options_one.accept()[0].close()
        options_met += 1
