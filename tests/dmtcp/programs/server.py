import socket
import subprocess
import sys

from asked import serve

SERVER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
count = 0
while True:
    connection, _ = listener.accept()
    for line in connection.makefile():
        count += 1
        connection.sendall(f"{count} {line}".encode())
"""

child = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
assert child.stdout is not None
port = int(child.stdout.readline())
kept = socket.create_connection(("127.0.0.1", port))
lines = kept.makefile("rw")


def answer() -> str:
    lines.write("hello\n")
    lines.flush()
    return lines.readline().strip()


serve(answer)
