"""Freezing, waking, capturing and rolling back: the runtime of a kernel that can go back.

Imports nothing of ``jupyter_timetravel``; see docs/architecture.md for the import direction.
"""
