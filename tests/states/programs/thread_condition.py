"""Threads that wait for a condition, an event, a queue and a barrier."""

# %% setup
import queue
import threading

condition_it = threading.Condition()
condition_event = threading.Event()
condition_queue = queue.Queue()
condition_barrier = threading.Barrier(2)
condition_done = []


def condition_wait():
    with condition_it:
        condition_it.wait()
    condition_done.append("condition")


condition_threads = [
    threading.Thread(target=condition_wait, daemon=True),
    threading.Thread(
        target=lambda: condition_event.wait() and condition_done.append("event"), daemon=True
    ),
    threading.Thread(target=lambda: condition_done.append(condition_queue.get()), daemon=True),
    threading.Thread(
        target=lambda: condition_barrier.wait() + 1 and condition_done.append("barrier"),
        daemon=True,
    ),
]
for condition_thread in condition_threads:
    condition_thread.start()

# %% check
with condition_it:
    condition_it.notify_all()
condition_event.set()
condition_queue.put("queue")
condition_barrier.wait(5)
for condition_thread in condition_threads:
    condition_thread.join(5)
assert sorted(condition_done) == ["barrier", "condition", "event", "queue"]
