"""On which nodes memory is to lie (set_mempolicy, mbind)."""

# named: policy of memory

# %% setup
import ctypes
import os

policy_libc = ctypes.CDLL(None)
policy_libc.mmap.restype = ctypes.c_void_p
policy_numbers = {"x86_64": (239, 238, 237)}.get(os.uname().machine, (236, 237, 235))
policy_nodes = ctypes.c_ulong(1)
policy_memory = policy_libc.mmap(None, ctypes.c_size_t(65536), 3, 0x22, -1, ctypes.c_long(0))


def policy_call(number, *given):
    arguments = [ctypes.c_long(policy_numbers[number]), *map(ctypes.c_long, given)]
    return policy_libc.syscall(*arguments)


def policy_found():
    modes = [ctypes.c_int(), ctypes.c_int()]
    policy_call(0, ctypes.addressof(modes[0]), 0, 0, 0, 0)
    policy_call(0, ctypes.addressof(modes[1]), 0, 0, policy_memory, 2)
    return [mode.value for mode in modes]


policy_call(1, 1, ctypes.addressof(policy_nodes), 64)
policy_call(2, policy_memory, 65536, 2, ctypes.addressof(policy_nodes), 64, 0)
policy_expected = policy_found()

# %% change
policy_call(1, 0, 0, 0)

# %% check
policy_now = policy_found()
policy_call(1, 0, 0, 0)
assert policy_now == policy_expected
