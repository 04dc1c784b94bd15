"""The MCP server: time travel for agents. It is imported only where the package mcp is."""
