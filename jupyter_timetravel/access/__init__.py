"""One session by whatever name it was given: its kernel if one runs, else what the store holds.

The command line and the MCP server use it; both get the results of docs/protocol.md.
"""
