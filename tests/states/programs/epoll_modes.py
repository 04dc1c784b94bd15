"""Entries of epoll that tell once, at edges, or one set of several."""

# named: entries of epoll

# %% setup
import os
import select

modes_count = os.eventfd(1)
modes_once, modes_edge, modes_alone = (select.epoll() for _ in range(3))
modes_once.register(modes_count, select.EPOLLIN | select.EPOLLONESHOT)
modes_edge.register(modes_count, select.EPOLLIN | select.EPOLLET)
modes_alone.register(modes_count, select.EPOLLIN | select.EPOLLEXCLUSIVE)
modes_armed = select.epoll()
modes_armed.register(modes_count, select.EPOLLIN | select.EPOLLONESHOT)
assert modes_once.poll(0) == [(modes_count, select.EPOLLIN)]

# %% change
os.eventfd_read(modes_count)
modes_once.modify(modes_count, select.EPOLLIN | select.EPOLLONESHOT)

# %% check
assert modes_once.poll(0) == []
assert modes_armed.poll(0) == [(modes_count, select.EPOLLIN)]
assert modes_armed.poll(0) == []
assert modes_edge.poll(0) == [(modes_count, select.EPOLLIN)]
assert modes_edge.poll(0) == []
assert modes_alone.poll(0) == modes_alone.poll(0) == [(modes_count, select.EPOLLIN)]
os.eventfd_write(modes_count, 1)
assert modes_edge.poll(0) == [(modes_count, select.EPOLLIN)]
