"""Limits of resources, soft and hard."""

# %% setup
import resource

limits_files = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (500, limits_files[1]))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

# %% change
resource.setrlimit(resource.RLIMIT_NOFILE, limits_files)

# %% check
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (500, limits_files[1])
assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
