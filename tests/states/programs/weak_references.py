"""Weak references and what runs at the end of an object."""

# %% setup
import weakref


class WeakThing:
    pass


weak_thing = WeakThing()
weak_ended = []
weak_reference = weakref.ref(weak_thing)
weakref.finalize(weak_thing, weak_ended.append, "ended")

# %% check
assert weak_reference() is weak_thing and not weak_ended
del weak_thing
assert weak_reference() is None and weak_ended == ["ended"]
