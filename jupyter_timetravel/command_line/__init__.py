"""The commands that work on running kernels and on stored sessions alike."""
