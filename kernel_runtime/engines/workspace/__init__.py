"""Snapshots of the notebook's directory, and journaled restores in place."""
