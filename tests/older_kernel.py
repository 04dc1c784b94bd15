"""A process to which the kernel is an older one."""

BEFORE_6_11 = """
import ctypes, errno, fcntl, platform, struct
numbers = {"x86_64": 16, "aarch64": 29}  # of ioctl
refuse = [(0x20, 0, 0, 0), (0x15, 0, 3, numbers[platform.machine()]), (0x20, 0, 0, 24),
          (0x15, 0, 1, 0xC0686611), (0x06, 0, 0, 0x50019), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in refuse))
program = struct.pack("@HP", len(refuse), ctypes.addressof(code))
assert ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == 0 == ctypes.CDLL(None).prctl(22, 2, program)
try:
    fcntl.ioctl(open("/proc/self/maps"), 0xC0686611, bytes(104))
except OSError as error:
    assert error.errno == errno.ENOTTY, error
"""
"""A filter that answers PROCMAP_QUERY as such a kernel does (ENOTTY): mappings are read as text."""
