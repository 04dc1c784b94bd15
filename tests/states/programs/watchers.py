"""Descriptors that watch: fanotify, userfaultfd, perf, as far as everybody may have them."""

# named: fanotify|userfaultfd|perf

# %% setup
import ctypes
import os

watch_libc = ctypes.CDLL(None)
watch_x86 = os.uname().machine == "x86_64"
watch_fds = [
    watch_libc.fanotify_init(0x200, 0),  # FAN_REPORT_FID
    watch_libc.syscall(323 if watch_x86 else 282, 1 | 0o2000000),  # UFFD_USER_MODE_ONLY
]
watch_perf = ctypes.create_string_buffer(128)
ctypes.c_uint32.from_buffer(watch_perf, 0).value = 1  # software
ctypes.c_uint32.from_buffer(watch_perf, 4).value = 128
ctypes.c_uint64.from_buffer(watch_perf, 40).value = 0b1100000  # not the kernel, not the hypervisor
watch_fds.append(
    watch_libc.syscall(298 if watch_x86 else 241, watch_perf, 0, -1, -1, ctypes.c_ulong(8))
)
watch_links = [os.readlink(f"/proc/self/fd/{fd}") if fd >= 0 else None for fd in watch_fds]

# %% check
watch_now = [os.readlink(f"/proc/self/fd/{fd}") if fd >= 0 else None for fd in watch_fds]
assert watch_now == watch_links, (watch_now, watch_links)
