"""A thread that sleeps and counts."""

# %% setup
import threading
import time

sleep_count = [0]


def sleep_count_on():
    while True:
        time.sleep(0.002)
        sleep_count[0] += 1


sleep_thread = threading.Thread(target=sleep_count_on, daemon=True, name="counter")
sleep_thread.start()

# %% check
sleep_before = sleep_count[0]
for _ in range(2000):
    if sleep_count[0] > sleep_before:
        break
    time.sleep(0.005)
assert sleep_count[0] > sleep_before and sleep_thread.name == "counter"
