"""Data of each thread's own, also C's."""

# %% setup
import threading

local_data = threading.local()
local_data.value = "main"
local_ask, local_answer = threading.Semaphore(0), []


def local_serve():
    local_data.value = "other"
    local_ready.set()
    local_ask.acquire()
    local_answer.append(local_data.value)


local_ready = threading.Event()
local_thread = threading.Thread(target=local_serve, daemon=True)
local_thread.start()
local_ready.wait()

# %% change
local_data.value = "changed"

# %% check
assert local_data.value == "main"
local_ask.release()
local_thread.join(5)
assert local_answer == ["other"]
