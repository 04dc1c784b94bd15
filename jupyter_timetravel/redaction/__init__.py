"""Taking a secret out of checkpoints that were made already (docs/store.md)."""
