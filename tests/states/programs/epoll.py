"""A set of epoll, and what is ready in it."""

# %% setup
import os
import select

epoll_read, epoll_write = os.pipe()
epoll_set = select.epoll()
epoll_set.register(epoll_read, select.EPOLLIN)
os.write(epoll_write, b"x")

# %% change
os.read(epoll_read, 1)

# %% check
assert epoll_set.poll(5) == [(epoll_read, select.EPOLLIN)]
os.read(epoll_read, 1)
assert epoll_set.poll(0) == []
