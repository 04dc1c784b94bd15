import itertools
import os
import subprocess
import sys
import threading
import time

from asked import serve

ticks = [0]


def tick() -> None:
    while True:
        time.sleep(0.005)
        ticks[0] += 1


def answer() -> str:
    before, end = ticks[0], time.monotonic() + 30
    while ticks[0] == before and time.monotonic() < end:
        time.sleep(0.005)
    return f"{next(half)} {ticks[0] > before} {child.poll()} {os.getpid()} {child.pid}"


threading.Thread(target=tick, daemon=True).start()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
half = itertools.count()
serve(answer)
