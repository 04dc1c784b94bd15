"""A timeline as one file: written, read without trusting any of it, and taken into a store.

docs/exchange.md has the format, and who is trusted with what.
"""
