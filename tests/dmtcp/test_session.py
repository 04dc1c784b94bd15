"""Notebooks whose kernel runs under DMTCP: threads and child processes come back with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.kernel.durable_world import kill

DMTCP = "--Supervisor.process_engine=dmtcp"
ON_DEMAND = (DMTCP, "--Supervisor.auto=off")

CHILDREN = """
import multiprocessing, os, socket, subprocess, sys, threading, time
def square(x): return x * x, os.getpid()
pool = multiprocessing.get_context('fork').Pool(2)
workers = {p.pid for p in pool._pool}
half = (n for n in range(100)); next(half)
ticks = [0]
def tick():
    while True: time.sleep(0.01); ticks[0] += 1
thread = threading.Thread(target=tick, daemon=True); thread.start()
number = 'import sys\\nfor n, l in enumerate(sys.stdin, 1): print(n, l.strip(), flush=True)'
shout = 'import sys\\nfor l in sys.stdin: print(l.strip().upper(), flush=True)'
first = subprocess.Popen([sys.executable, '-c', number], stdin=-1, stdout=-1, text=True)
second = subprocess.Popen([sys.executable, '-c', shout], stdin=first.stdout, stdout=-1, text=True)
serve = '''
import socket
listener = socket.create_server(('127.0.0.1', 0)); print(listener.getsockname()[1], flush=True)
count = 0
while True:
    connection, _ = listener.accept()
    for line in connection.makefile():
        count += 1; connection.sendall(f'{count} {line}'.encode())
'''
server = subprocess.Popen([sys.executable, '-c', serve], stdout=-1, text=True)
kept = socket.create_connection(('127.0.0.1', int(server.stdout.readline())))
talk = kept.makefile('rw')
log = open('log', 'w'); log.write('written'); log.flush(); log.write(', buffered')
me = os.getpid()
"""
STEP = """
found = pool.map(square, range(4), chunksize=1)
first.stdin.write('word\\n'); first.stdin.flush()
talk.write('hello\\n'); talk.flush()
before = ticks[0]; time.sleep(0.1)
log.write('.'); log.flush()
print([x for x, _ in found], {p for _, p in found} <= workers, next(half),
      second.stdout.readline().strip(), talk.readline().strip(), ticks[0] > before,
      os.getpid() == me, open('log').read())
"""


def test_children_come_back_in_the_same_kernel_and_after_kill_of_everything(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    notebook = start_notebook(*ON_DEMAND, **document)
    notebook.run(CHILDREN)
    text = notebook.run("%checkpoint --label all").out
    assert "all" in text
    first = notebook.run(STEP).out
    assert first == "[0, 1, 4, 9] True 1 1 WORD 1 hello True True written, buffered."
    second = notebook.run(STEP).out
    assert second == "[0, 1, 4, 9] True 2 2 WORD 2 hello True True written, buffered.."
    for _ in range(2):
        text = notebook.run("%restore all").out
        assert text.startswith("restored #") and "a fresh one" not in text, text
        assert notebook.run(STEP).out == first
    notebook.run("%restore --undo")
    assert notebook.run(STEP).out == second
    kill(notebook)
    notebook = start_notebook(*ON_DEMAND, **document)
    text = notebook.run("%restore all").out
    assert text.startswith("restored #") and "a fresh one" not in text, text
    assert notebook.run(STEP).out == first
