"""The sandbox: the namespaces in which executors live, and the small init that owns their processes."""
