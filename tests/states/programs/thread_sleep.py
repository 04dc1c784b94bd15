"""A thread that sleeps and counts; clocks, which never go back."""

# %% setup
import threading
import time

sleep_count = [0]
sleep_clocks = (time.CLOCK_MONOTONIC, time.CLOCK_MONOTONIC_RAW, time.CLOCK_BOOTTIME)
sleep_times = [time.clock_gettime(clock) for clock in sleep_clocks] + [time.perf_counter()]


def sleep_count_on():
    while True:
        time.sleep(0.002)
        sleep_count[0] += 1


sleep_thread = threading.Thread(target=sleep_count_on, daemon=True, name="counter")
sleep_thread.start()

# %% check
sleep_now = [time.clock_gettime(clock) for clock in sleep_clocks] + [time.perf_counter()]
assert all(now > then for now, then in zip(sleep_now, sleep_times)), (sleep_now, sleep_times)
sleep_before = sleep_count[0]
for _ in range(2000):
    if sleep_count[0] > sleep_before:
        break
    time.sleep(0.005)
assert sleep_count[0] > sleep_before and sleep_thread.name == "counter"
