"""How long `children = "capture"` holds a session up, against bare CRIU on the same processes.

    python bench/children.py [SIZE_MIB ...]

As root. A kernel whose process has an array of random bytes and four children: two workers of a
multiprocessing.Pool, `cat` on two pipes, `sleep`. Ours: the pause that a checkpoint reports, from
the first process that is stopped until the executor goes on. Bare: `criu dump --leave-running` of
the same processes, started in their namespaces, from its start to its end. In turns, medians, in
milliseconds. Back: `%restore` of that checkpoint as it reports it, all of it; bare restore is in
bench/criu.py.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

from kernel_runtime.engines import criu_program  # noqa: E402
from kernel_runtime.supervisor.executors import LINK_FD  # noqa: E402
from tests.conftest import Manager, Notebook  # noqa: E402

ROUNDS = 7
STATE = """
import multiprocessing, os, subprocess
def square(x): return x * x
pool = multiprocessing.get_context('fork').Pool(2); pool.map(square, range(4))
cat = subprocess.Popen(['cat'], stdin=-1, stdout=-1)
sleep = subprocess.Popen(['sleep', '100000'])
data = bytearray(os.urandom(1 << 20)) * {mib}
for at in range(0, len(data), 4096):
    data[at:at + 8] = at.to_bytes(8, "little")
os.getpid()
"""


def bare(pid: int, init: int, folder: Path) -> float:
    """One dump; pid as seen inside of the namespaces of init."""
    program = criu_program.find()
    link = os.readlink(f"/proc/{init}/root/proc/{pid}/fd/{LINK_FD}")
    images = os.open(folder, os.O_RDONLY)
    command = ["nsenter", "-t", str(init), "-m", "-p", "-i", program.loader, "--library-path"]
    command += [":".join(program.libraries), program.path, "dump", "--leave-running"]
    command += ["--tree", str(pid), "--external", f"unix[{re.sub('[^0-9]', '', link)}]"]
    command += ["--tcp-close", "--file-locks", "--manage-cgroups=ignore", "-v1"]
    command += ["--images-dir", f"/proc/self/fd/{images}", "--work-dir", f"/proc/self/fd/{images}"]
    started = time.perf_counter()
    subprocess.run(command, pass_fds=[images], check=True)
    took_ms = (time.perf_counter() - started) * 1e3
    os.close(images)
    for path in folder.iterdir():
        path.unlink()
    return took_ms


def measure(mib: int, folder: Path) -> dict[str, float]:
    (folder / "work").mkdir()
    (folder / "work" / "n.ipynb").write_text("{}")
    (folder / "bare").mkdir()
    manager = Manager()
    manager.arguments = (
        "--Supervisor.children=capture",
        "--Supervisor.durability=manual",
        "--Supervisor.images=False",
        f"--Supervisor.store={folder / 'store'}",
    )
    env = {**os.environ, "JPY_SESSION_NAME": str(folder / "work" / "n.ipynb")}
    manager.start_kernel(cwd=str(folder / "work"), env=env)
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    notebook = Notebook(manager, client, folder / "work")
    found: dict[str, list[float]] = {}
    try:
        pid = int(notebook.run(STATE.format(mib=mib), timeout=300).result or 0)
        supervisor = manager.provisioner.pid  # type: ignore[union-attr]
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
        (init,) = [int(one) for one in children if Path(f"/proc/{one}/root/proc/{pid}").exists()]
        for number in range(ROUNDS):
            found.setdefault("bare dump", []).append(bare(pid, init, folder / "bare"))
            notebook.run(f"%checkpoint --label c{number}", timeout=300)
            shown = notebook.run(f"%timeline c{number}", timeout=300).out
            (paused,) = re.findall(r"children, paused ([0-9]+) ms", shown)
            found.setdefault("pause", []).append(float(paused))
            text = notebook.run(f"%restore c{number}", timeout=300).out
            assert "not brought back" not in text, text
            (took,) = re.findall(r"\(([0-9.]+) ms\)", text)
            found.setdefault("restore", []).append(float(took))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    for mib in [int(a) for a in sys.argv[1:]] or [20, 1024]:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            row = measure(mib, Path(folder))
        print(f"{mib} MiB")
        for name, value in row.items():
            print(f"  {name:14} {value:10.1f}")
        print(f"  pause / bare dump {row['pause'] / row['bare dump']:6.2f}")


if __name__ == "__main__":
    main()
