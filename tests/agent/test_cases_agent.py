"""What agents do to sessions, and what must come back: by magic, command line and MCP alike."""

from __future__ import annotations

import hashlib
import http.server
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from agent_world import MAIN, Agent, agent, end, ended, make_book, on_disk

Start = Callable[..., Any]
MB = int(os.environ.get("TT_MB", "30"))
"""Size of what is large: the cases as they were written are run with TT_MB=200 TT_CELLS=120."""
WAYS = ("magic", "command line", "mcp")


@asynccontextmanager
async def going_back(
    way: str, kernel: Any, book: Path, tt: Start
) -> AsyncIterator[Callable[[int | str], Awaitable[str]]]:
    """Restore in one of three ways; what was said."""

    async def by_magic(checkpoint: int | str) -> str:
        return str(kernel.run(f"%restore {checkpoint}").out)

    async def by_command(checkpoint: int | str) -> str:
        return str(await anyio.to_thread.run_sync(tt, "restore", book, checkpoint))

    if way == "mcp":
        async with agent() as ask:

            async def by_tool(checkpoint: int | str) -> str:
                return await ask.said("restore", notebook=str(book), checkpoint=checkpoint)

            yield by_tool
    else:
        yield by_magic if way == "magic" else by_command


def listing(top: Path) -> list[tuple[str, str, int, str]]:
    """Everything below a directory: path, type, mode, content; the notebook left out."""
    found = []
    for path in sorted(top.rglob("*")):
        if path.suffix == ".ipynb" or ".ipynb_checkpoints" in path.parts:
            continue
        mode, kind, held = path.lstat().st_mode, "file", ""
        if path.is_symlink():
            kind, held = "link", os.readlink(path)
        elif path.is_dir():
            kind = "directory"
        else:
            held = hashlib.sha256(path.read_bytes()).hexdigest()
        found.append((str(path.relative_to(top)), kind, stat.S_IMODE(mode), held))
    return found


@pytest.mark.parametrize("way", WAYS)
async def test_01_what_a_shell_did(way: str, book: Path, on: Start, tt: Start) -> None:
    kernel = on(book)
    kernel.run(
        'import os; os.makedirs("d/sub"); open("d/a.txt","w").write("A1")\n'
        'open("d/sub/run.sh","w").write("echo hi\\n"); os.chmod("d/sub/run.sh", 0o755)\n'
        'os.symlink("a.txt", "d/link"); os.mkdir("empty")'
    )
    kernel.head()
    before = listing(book.parent)
    kernel.run(
        "%%bash\nrm d/a.txt && mv d/sub/run.sh d/run2.sh && chmod 600 d/run2.sh\n"
        "rm d/link && mkdir -p d/link/x && touch d/link/x/y && rmdir empty\n"
        "mkdir -p new/deep/er && echo z > new/deep/er/z && touch .hidden"
    )
    async with going_back(way, kernel, book, tt) as restore:
        await restore(1)
    assert listing(book.parent) == before
    out = kernel.run(
        "import os, stat\n"
        'print(open("d/a.txt").read(), os.readlink("d/link"),'
        ' oct(stat.S_IMODE(os.stat("d/sub/run.sh").st_mode)))\n'
        'print([os.path.exists(p) for p in ("d/run2.sh","new","new/deep/er/z",".hidden")])'
    ).out
    assert out == "A1 a.txt 0o755\n[False, False, False, False]"


@pytest.mark.parametrize("way", WAYS)
async def test_02_files_of_other_programs(way: str, book: Path, on: Start, tt: Start) -> None:
    kernel = on(book)
    kernel.run("x = 1")
    kernel.head()
    results = os.urandom(5_000_000)
    (book.parent / "out").mkdir()
    (book.parent / "out" / "eval.bin").write_bytes(results)  # not the session
    kernel.run("open('mine.txt','w').write('agent file'); x = 2")
    async with going_back(way, kernel, book, tt) as restore:
        await restore(1)
    assert kernel.run("print(x, __import__('os').path.exists('mine.txt'))").out == "1 False"
    if not (book.parent / "out" / "eval.bin").exists():
        # what a restore takes away is in the safety checkpoint that it made
        kernel.run("%restore --undo")
    assert (book.parent / "out" / "eval.bin").read_bytes() == results


async def test_04_two_agents_and_one_server(
    tmp_path: Path, tt: Start, start_notebook: Start
) -> None:
    a, b = (make_book(tmp_path / name / f"{name}.ipynb") for name in "ab")
    async with agent() as ask, anyio.create_task_group() as group:
        await ask.run(a, "who = 'A'; print(who)")
        first = await ask.run(b, "import os; who = 'B'; print(who); os.getpid()")
        await ask("checkpoint", notebook=str(a), label="A-good")
        await ask.run(b, "who = 'B2'")
        await ask.run(a, "who = 'A2'")
        slow: list[dict[str, Any]] = []

        async def sleeping() -> None:
            slow.append(await ask.run(b, "import time; time.sleep(3); print(who)"))

        group.start_soon(sleeping)
        while not (await ask("status", notebook=str(b)))["busy"]:
            await anyio.sleep(0.02)
        await ask("restore", notebook=str(a), checkpoint="A-good")
        assert not slow, "b's cell was still running"
        assert (await ask.run(a, "who"))["result"] == "'A'"
        while not slow:
            await anyio.sleep(0.05)
        assert slow[0]["stdout"] == "B2\n"
        assert (await ask.run(b, "os.getpid()"))["result"] == first["result"]
        labels = [one["label"] for one in tt("list", b, "--json")["checkpoints"]]
        assert "A-good" not in labels
        told = await ask.refused("restore", notebook=str(b), checkpoint="A-good")
        assert told["ename"] == "UnknownCheckpoint"
        # whoever names no notebook gets none
        done = await ask.client.call_tool("restore", {"checkpoint": "A-good"})
        assert done.is_error and "notebook" in done.content[0].text


async def test_05_a_cell_that_outlasts_its_limit(
    book: Path, start_notebook: Start, tt: Start
) -> None:
    async with agent() as ask:
        await ask.run(book, "log = []")
        code = "import time\nfor i in range(8):\n    time.sleep(0.4); log.append(i)\n"
        cut = await ask("run_cell", notebook=str(book), code=code, timeout_s=1)
        assert (cut["state"], cut["outcome"], cut["checkpoint"]) == ("running", None, None)
        # refused within its limit: then nothing is made later either
        told = await ask.refused("checkpoint", notebook=str(book), label="hasty", timeout_s=0.1)
        assert told["ename"] == "KernelBusy" and cut["cell"] in told["evalue"]
        answers: dict[str, Any] = {}

        async def keep(name: str, tool: str, **more: Any) -> None:
            answers[name] = await ask(tool, notebook=str(book), **more)

        async with anyio.create_task_group() as group:  # both sent at once
            group.start_soon(lambda: keep("made", "checkpoint", label="after-timeout"))
            group.start_soon(lambda: keep("third", "run_cell", code="print(len(log))"))
        rest = await ask("wait_for_cell", notebook=str(book), cell=cut["cell"])
        assert (rest["state"], rest["outcome"]) == ("finished", "ok")
        count = answers["third"]["stdout"].strip()
        assert count == "8"
        listed = tt("list", book, "--json")["checkpoints"]
        assert "hasty" not in [one["label"] for one in listed]
        counts = [one["coordinate"]["execution_count"] for one in listed if one["reason"] == "cell"]
        assert len(set(counts)) == len(counts)
        for checkpoint in ("after-timeout", answers["third"]["checkpoint"]):
            await ask("restore", notebook=str(book), checkpoint=checkpoint)
            assert (await ask.run(book, "print(len(log))"))["stdout"].strip() == count


def git(top: Path, *words: str) -> str:
    """What git says; it must not fail."""
    return subprocess.run(
        ["git", "-C", str(top), *words], capture_output=True, text=True, timeout=60, check=True
    ).stdout


def state_of_git(top: Path) -> tuple[str, list[str], str]:
    """What must not change: status, names, the inner repository."""
    names = sorted(str(path.relative_to(top)) for path in top.rglob(".git*"))
    names += sorted(str(path.relative_to(top)) for path in top.rglob("*.lock"))
    return git(top, "status", "--porcelain"), names, git(top / "sub", "rev-parse", "--git-dir")


REPOSITORY = f"""%%bash
git init -q . && git -c user.name=u -c user.email=u@x commit -q --allow-empty -m one
git init -q sub && head -c {MB}000000 /dev/zero > big.bin && echo 1 > f && git add f
"""


def complete(tt: Start, book: Path, label: str) -> None:
    """No half checkpoint of that label: each is there whole, and can be gone back to."""
    for one in tt("list", book, "--json")["checkpoints"]:
        if one["label"] == label:
            ready = {capture["kind"] for capture in one["captures"] if capture["state"] == "ready"}
            assert {"process", "filesystem"} <= ready, one
            tt("restore", book, one["number"], "--dry-run")


@pytest.mark.slow
def test_07_the_one_who_asks_for_a_checkpoint_is_killed(book: Path, on: Start, tt: Start) -> None:
    kernel = on(book)
    kernel.run(REPOSITORY)
    good = tt("checkpoint", book, "--label", "good", "--json")["checkpoint"]["number"]
    before = state_of_git(book.parent)
    log = git(book.parent, "log", "--oneline")
    for number in range(10):
        kernel.run(f"open('big.bin', 'r+b').write(b'{number}' * 1000); x = {number}")
        changed = git(book.parent, "status", "--porcelain")
        asking = subprocess.Popen(
            [sys.executable, "-c", MAIN, "checkpoint", str(book), "--label", "mid"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep((0.05, 0.15, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.2, 2.0)[number])
        asking.kill()
        asking.wait()
        assert state_of_git(book.parent)[1:] == before[1:]
        assert git(book.parent, "status", "--porcelain") == changed
        complete(tt, book, "mid")
        assert tt("checkpoint", book, "--label", f"next {number}", "--json")["checkpoint"]
    kernel.run(
        "%%bash\ngit reset -q f\n"
        "git -c user.name=u -c user.email=u@x commit -q --allow-empty -m two"
    )
    tt("restore", book, good)
    assert state_of_git(book.parent) == before
    assert git(book.parent, "log", "--oneline") == log
    assert git(book.parent, "diff", "--cached", "--name-only") == "f\n"


@pytest.mark.slow
async def test_07_the_server_is_killed(book: Path, start_notebook: Start, tt: Start) -> None:
    """The program that has started the kernel, while a checkpoint is being made."""
    for delay in (0.0, 0.005, 0.02):
        with pytest.raises(Exception):  # noqa: B017 - whatever the SDK makes of a broken pipe
            async with agent() as ask:
                if not (book.parent / ".git").exists():
                    await ask.run(book, REPOSITORY)
                    await ask("checkpoint", notebook=str(book), label="good")
                    before = state_of_git(book.parent)
                await ask.run(book, f"x = {delay}; open('big.bin', 'r+b').write(b'x' * 1000);")
                await kill_while_checkpointing(ask, book, delay)
        ended(tt, book)
        assert state_of_git(book.parent)[1:] == before[1:]
        complete(tt, book, "mid")
        async with agent() as ask:
            await ask.run(book, "y = 1")
            await ask("checkpoint", notebook=str(book), label=f"next {delay}")
    ended(tt, book)
    tt("restore", book, "good")
    assert state_of_git(book.parent) == before


async def kill_while_checkpointing(ask: Agent, book: Path, delay: float) -> None:
    (server,) = [one for one in psutil.Process().children() if "mcp" in one.cmdline()[-1:]]
    kernels = server.children()

    async def kill() -> None:
        await anyio.sleep(delay)
        os.kill(server.pid, signal.SIGKILL)
        await anyio.to_thread.run_sync(lambda: psutil.wait_procs(kernels, timeout=60))

    async with anyio.create_task_group() as group:
        group.start_soon(kill)
        with anyio.fail_after(60):
            await ask("checkpoint", notebook=str(book), label="mid")
            await ask("kernels")


def size_of(top: Path) -> int:
    """Bytes on the disk, as `du` counts them; what a kernel deletes meanwhile does not count."""
    words = ["du", "-s", "-B1", str(top)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return int(done.stdout.split()[0])


@pytest.mark.slow
def test_08_many_checkpoints_of_what_does_not_change(
    book: Path, on: Start, tt: Start, tmp_path: Path
) -> None:
    cells, megabytes = int(os.environ.get("TT_CELLS", "30")), MB
    store = tmp_path / "store"
    kernel = on(book)
    kernel.run(
        "import os, numpy as np\n"
        f"open('big.bin','wb').write(os.urandom({megabytes}_000_000))\n"
        f"arr = np.random.rand({megabytes * 1_000_000 // 16})"
    )
    first = tt("checkpoint", book, "--json")["checkpoint"]["number"]
    sizes = [size_of(store)]
    for number in range(2, cells + 2):
        kernel.run(f"i = {number}; open('small.txt','w').write(str(i))")
    last = tt("checkpoint", book, "--json")["checkpoint"]["number"]
    assert last - first >= cells
    on_disk(lambda: tt("show", book, last, "--json"))
    end(kernel)
    sizes.append(size_of(store))
    assert sizes[1] < 5 * 1.5 * megabytes * 1_000_000, sizes
    kernel = on(book)
    tt("restore", book, last)
    assert kernel.run("print(i, arr.shape[0])").out == (
        f"{cells + 1} {megabytes * 1_000_000 // 16}"
    )
    end(kernel)
    tt("delete", book, "--timeline", "--yes")
    sizes.append(size_of(store))
    assert sizes[2] < 20_000_000, sizes
    print(sizes)


@pytest.fixture
def counter() -> Iterator[list[int]]:
    """A service outside of the kernel that counts; [port, count]."""
    told = [0, 0]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told[1] += 1
            self.send_response(200)
            self.end_headers()
            self.wfile.write(str(told[1]).encode())

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        told[0] = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield told
        server.shutdown()


@pytest.mark.parametrize("way", ["command line", "mcp"])
async def test_10_effects_are_not_repeated_silently(
    way: str, book: Path, on: Start, tt: Start, counter: list[int]
) -> None:
    kernel = on(book)
    add = f"n = int(urllib.request.urlopen('http://127.0.0.1:{counter[0]}/add').read())"
    kernel.cells("import urllib.request", add, "n2 = n * 10", add)
    assert counter[1] == 2
    async with going_back(way, kernel, book, tt) as restore:
        said = await restore(3)
    assert "#4" in said and f"127.0.0.1:{counter[0]}" in said
    assert counter[1] == 2
    assert kernel.run("print(n, n2)", store_history=False).out == "1 10"
    await anyio.to_thread.run_sync(lambda: tt("restore", book, "--undo"))
    if way == "command line":
        told = tt("replay", book, 3, "--json", status=4)
        assert told["ename"] == "NotConfirmed" and "/add" in told["evalue"]
        assert counter[1] == 2
        tt("replay", book, 3, "--yes")
    else:
        async with agent() as ask:
            told = await ask("replay", notebook=str(book), checkpoint=3)
            assert told["needs_confirmation"] and told["cells"] == []
            assert any(one.startswith("#4 requested GET") for one in told["external_effects"])
            assert counter[1] == 2
            told = await ask("replay", notebook=str(book), checkpoint=3, confirm=True)
            assert [one["outcome"] for one in told["cells"]] == ["ok"]
    assert counter[1] == 3
    assert kernel.run("print(n)").out == "3"


def test_10_values_come_from_the_disk_and_not_from_cells(
    book: Path, on: Start, tt: Start, counter: list[int]
) -> None:
    kernel = on(book, "--Supervisor.images=False")
    add = f"n = int(urllib.request.urlopen('http://127.0.0.1:{counter[0]}/add').read())"
    kernel.cells("import urllib.request", add)
    tt("checkpoint", book, "--label", "one")
    on_disk(lambda: tt("show", book, "one", "--json"))
    kernel.run(add)
    end(kernel)
    told = tt("restore", book, "one", "--json")
    assert [one["cell"] for one in told["effects"]], "what is left behind is named"
    kernel = on(book, "--Supervisor.images=False")
    assert kernel.run("print(n)").out == "1"
    assert counter[1] == 2


async def test_11_the_head_is_the_same_for_all(book: Path, on: Start, tt: Start) -> None:
    kernel = on(book)
    kernel.cells("t = ['a']", "t.append('b')", "t.append('c')")
    of_cell: dict[int, str] = {}

    def seen() -> dict[str, Any]:
        """By the id of a cell's code: its parent's."""
        told = tt("list", book, "--json")
        for one in told["checkpoints"]:
            if one["reason"] == "cell":
                of_cell.setdefault(len(of_cell) + 1, one["id"]) if (
                    one["id"] not in of_cell.values()
                ) else None
        return told

    seen()
    tt("restore", book, of_cell[1])
    kernel.cells("t.append('X')", "t.append('Y')")
    told = seen()
    async with agent() as ask:
        assert told["head"] == of_cell[5]
        assert (await ask("list_checkpoints", notebook=str(book)))["head"] == of_cell[5]
        assert (await ask("status", notebook=str(book)))["head"]["id"] == of_cell[5]
        await ask("restore", notebook=str(book), checkpoint=of_cell[3])
        await ask.run(book, "t.append('Z')")
        told = seen()
        assert (await ask("list_checkpoints", notebook=str(book)))["head"] == of_cell[6]
    assert told["head"] == of_cell[6]
    parents = {of_cell[n]: told["parents"][of_cell[n]] for n in of_cell if n > 1}
    assert parents == {
        of_cell[child]: of_cell[parent]
        for child, parent in ((2, 1), (3, 2), (4, 1), (5, 4), (6, 3))
    }
    assert kernel.run("print(t)", silent=True).out == "['a', 'b', 'c', 'Z']"
    tt("restore", book, of_cell[5])
    assert kernel.run("print(t)", silent=True).out == "['a', 'X', 'Y']"
    before = {one["id"]: one["parent"] for one in tt("list", book, "--json")["checkpoints"]}
    for _ in range(5):
        tt("restore", book, of_cell[1])
    after = tt("list", book, "--json")["checkpoints"]
    assert {one["id"]: one["parent"] for one in after if one["id"] in before} == before
    assert all(one["reason"] == "safety" for one in after if one["id"] not in before)


@pytest.fixture
def little(tmp_path: Path, ability: Callable[[str, bool], None]) -> Iterator[Path]:
    """A disk for the store, which is soon full."""
    where = tmp_path / "store"
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=80m,mode=700", "tmpfs", str(where)]
    ability("mount tmpfs", subprocess.run(command, check=False).returncode == 0)
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


@pytest.mark.root
def test_08_the_store_is_full(little: Path, book: Path, on: Start, tt: Start) -> None:
    kernel = on(book)
    kernel.run("import os; open('big.bin','wb').write(os.urandom(30_000_000)); i = 0")
    tt("checkpoint", book, "--label", "fits")
    notices = 0
    for number in range(1, 7):
        cell = kernel.run(
            f"i = {number}; open('more.bin','wb').write(os.urandom(60_000_000)); print('ran', i)"
        )
        assert cell.out.startswith(f"ran {number}")
        kernel.head()
        said = cell.text() + cell.text("stderr")
        said += "".join(
            one["content"].get("text", "") for one in kernel.settle() if one["msg_type"] == "stream"
        )
        assert said.count("No room") <= 1, said
        notices += said.count("No room")
    assert notices >= 1
    held = little / "tmp"
    assert not held.exists() or not any(held.iterdir()), "a partial file was left"
    # what the store has no room for is not taken away from the user either
    assert "No room" in tt("restore", book, "fits", status=1)
    kernel.run("os.remove('more.bin')")
    tt("restore", book, "fits")
    assert kernel.run("print(i, os.path.exists('more.bin'))").out == "0 False"
    end(kernel)
    tt("delete", book, "--timeline", "--yes")
    assert size_of(little) < 20_000_000
