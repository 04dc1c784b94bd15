"""What threading.settrace and setprofile give to new threads, and what that has noted."""

# %% setup
import threading

trace_calls = []


def trace_note(frame, event, argument):
    trace_calls.append((event, frame.f_code.co_name))


threading.settrace(trace_note)
threading.setprofile(trace_note)

# %% change
threading.settrace(None)
threading.setprofile(None)

# %% check
trace_seen = [thing() is trace_note for thing in (threading.gettrace, threading.getprofile)]
trace_calls.clear()
trace_thread = threading.Thread(target=sorted, args=([2, 1],))
trace_thread.start()
trace_thread.join(60)
threading.settrace(None)
threading.setprofile(None)
assert trace_seen == [True, True] and ("call", "run") in trace_calls
