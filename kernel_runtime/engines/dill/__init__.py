"""Engine ``dill``: the namespace, written by a copy of a frozen process. It outlives the kernel."""
