"""A message queue of POSIX: the queue is the machine's, the descriptor is the process's."""

# named: queue

# %% setup
import ctypes
import os

mail_libc = ctypes.CDLL(None)
mail_name = f"/tt-states-mail-{os.getpid()}".encode()
mail_queue = mail_libc.mq_open(mail_name, os.O_CREAT | os.O_RDWR, 0o600, None)
assert mail_queue >= 0
assert mail_libc.mq_send(mail_queue, b"kept", ctypes.c_size_t(4), 0) == 0

# %% check
mail_room = ctypes.create_string_buffer(8192)
mail_time = (ctypes.c_long * 2)(0, 0)
mail_got = mail_libc.mq_timedreceive(mail_queue, mail_room, ctypes.c_size_t(8192), None, mail_time)
mail_libc.mq_unlink(mail_name)
assert mail_room.raw[:mail_got] == b"kept"
