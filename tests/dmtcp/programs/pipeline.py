import subprocess
import sys

from asked import serve

NUMBER = "import sys\nfor n, l in enumerate(sys.stdin, 1): print(n, l.strip(), flush=True)"
SHOUT = "import sys\nfor l in sys.stdin: print(l.strip().upper(), flush=True)"

first = subprocess.Popen(
    [sys.executable, "-c", NUMBER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)
second = subprocess.Popen(
    [sys.executable, "-c", SHOUT], stdin=first.stdout, stdout=subprocess.PIPE, text=True
)


def answer() -> str:
    assert first.stdin is not None and second.stdout is not None
    first.stdin.write("word\n")
    first.stdin.flush()
    return second.stdout.readline().strip()


serve(answer)
