"""``deny.py CALL… -- PROGRAM …``: run a program under a seccomp filter that refuses some calls."""

import ctypes
import os
import platform
import struct
import sys

NUMBERS = {
    "x86_64": {"unshare": 272, "mount": 165},
    "aarch64": {"unshare": 97, "mount": 40},
}[platform.machine()]
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, FILTER = 22, 38, 2
LOAD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, EPERM = 0x7FFF0000, 0x00050001


class Program(ctypes.Structure):
    """struct sock_fprog of seccomp(2)."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


cut = sys.argv.index("--")
calls = [NUMBERS[name] for name in sys.argv[1:cut]]
lines = [(LOAD, 0, 0, 0)]
lines += [(JUMP_EQUAL, len(calls) - index, 0, call) for index, call in enumerate(calls)]
lines += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, EPERM)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
program = Program(len(lines), ctypes.addressof(code))
assert libc.prctl(PR_SET_SECCOMP, FILTER, ctypes.byref(program), 0, 0) == 0
os.execvp(sys.argv[cut + 1], sys.argv[cut + 1 :])
