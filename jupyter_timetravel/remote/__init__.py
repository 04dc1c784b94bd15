"""Timelines in object storage: pushed, listed and pulled by URL.

docs/remote.md has the layout, its invariants, and who is trusted with what.
"""
