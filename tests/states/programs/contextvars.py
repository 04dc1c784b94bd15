"""Context variables, and a context that was copied."""

# %% setup
import contextvars

contextvars_it = contextvars.ContextVar("contextvars_it")
contextvars_token = contextvars_it.set("outer")
contextvars_copy = contextvars.copy_context()
contextvars_copy.run(contextvars_it.set, "inner")

# %% change
contextvars_it.set("changed")

# %% check
assert contextvars_it.get() == "outer"
assert contextvars_copy.run(contextvars_it.get) == "inner"
