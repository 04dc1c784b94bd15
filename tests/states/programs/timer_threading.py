"""A timer of threading that has not fired."""

# %% setup
import threading

timer_fired = threading.Event()
timer_it = threading.Timer(0.3, timer_fired.set)
timer_it.start()

# %% check
assert timer_fired.wait(10)
