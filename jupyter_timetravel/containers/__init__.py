"""Kernels in containers: a provisioner that starts the time-travel kernel by Docker's API.

Inside runs the same supervisor as anywhere else. Its channels are Unix sockets in a directory that
host and container share, so no port is opened, and a container without a network works too. What
the session keeps (store, keys, home) lies in directories of the user's, outside of the container: a
container that was removed costs no checkpoint.
"""
