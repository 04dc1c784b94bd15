"""Commands that look at and change what is in the store, without a kernel: one module each.

They run from the host's own files and read the sandbox's as data only, so they work when nothing
that a session has installed works any more.
"""
