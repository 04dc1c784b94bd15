"""The durable copy of a namespace: pickled by a woken copy, loaded by a fresh executor.

Runs in the user's interpreter. Imports the standard library and ``kernel_runtime.executor`` only;
``dill`` where it is there, and no library that the user has not imported.
"""
