"""A signal that is blocked and pending."""

# %% setup
import signal
import threading

pending_calls = []
signal.signal(signal.SIGRTMIN + 6, lambda number, frame: pending_calls.append(number))
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN + 6})
signal.pthread_kill(threading.get_ident(), signal.SIGRTMIN + 6)

# %% change
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGRTMIN + 6})

# %% check
assert signal.SIGRTMIN + 6 in signal.sigpending() and not pending_calls
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGRTMIN + 6})
assert pending_calls == [signal.SIGRTMIN + 6]
