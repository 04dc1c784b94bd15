"""An interval timer of the process, and its handler."""

# named: interval timer

# %% setup
import signal

itimer_ticks = []
signal.signal(signal.SIGVTALRM, lambda number, frame: itimer_ticks.append(number))
signal.setitimer(signal.ITIMER_VIRTUAL, 0.01, 0.01)

# %% change
signal.setitimer(signal.ITIMER_VIRTUAL, 0)

# %% check
import time

# it counts the processor time of the process
itimer_before, itimer_end = len(itimer_ticks), time.process_time() + 1
while len(itimer_ticks) == itimer_before and time.process_time() < itimer_end:
    pass
assert len(itimer_ticks) > itimer_before
signal.setitimer(signal.ITIMER_VIRTUAL, 0)
