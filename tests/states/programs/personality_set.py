"""The personality of the process: personality(2)."""

# named: personality

# %% setup
import ctypes

personality_libc = ctypes.CDLL(None)
personality_before = personality_libc.personality(0xFFFFFFFF)
personality_libc.personality(personality_before | 0x0040000 | 0x4000000)

# %% change
personality_libc.personality(personality_before)

# %% check
personality_now = personality_libc.personality(0xFFFFFFFF)
personality_libc.personality(personality_before)
assert personality_now == personality_before | 0x0040000 | 0x4000000
