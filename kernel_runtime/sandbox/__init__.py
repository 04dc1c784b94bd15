"""The sandbox: the namespaces that executors live in, and the init that owns their processes."""
