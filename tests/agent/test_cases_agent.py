"""What agents do to sessions, and what must come back: by magic, command line and MCP alike."""

from __future__ import annotations

import hashlib
import http.server
import os
import stat
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from agent_world import agent, end, make_book, on_disk

Start = Callable[..., Any]
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


@pytest.mark.parametrize(
    ("way", "sandbox"), [*((way, "namespaces") for way in WAYS), ("command line", "none")]
)
async def test_01_what_a_shell_did(
    way: str, sandbox: str, book: Path, on: Start, tt: Start
) -> None:
    """The workspace comes back without namespaces too; in containers: tests/containers."""
    kernel = on(book, f"--Supervisor.sandbox={sandbox}")
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


def ticks() -> None:
    """Wait until the clock of files has gone on: what is older is told from what is newer."""
    begin = time.time_ns()
    while time.time_ns() < begin + 50_000_000:
        time.sleep(0.01)


@pytest.mark.parametrize("way", WAYS)
async def test_02_files_of_other_programs(way: str, book: Path, on: Start, tt: Start) -> None:
    """What they have made stays, is named before and after, and goes where that is asked for."""
    kernel = on(book)
    kernel.run("x = 1")
    kernel.head()
    results = os.urandom(5_000_000)
    out = book.parent / "out"
    ticks()
    out.mkdir()
    (out / "eval.bin").write_bytes(results)  # not the session
    ticks()
    kernel.run("open('mine.txt','w').write('agent file'); open('out/log','w').write('l'); x = 2")
    kernel.head()
    beforehand = tt("restore", book, 1, "--dry-run")
    assert "out/eval.bin stays as it is: another program made it" in beforehand
    assert "mine.txt" in beforehand and "out/log" in beforehand
    async with going_back(way, kernel, book, tt) as restore:
        said = await restore(1)
    assert "out/eval.bin stays as it is: another program made it" in said
    assert kernel.run("print(x, __import__('os').path.exists('mine.txt'))").out == "1 False"
    assert (out / "eval.bin").read_bytes() == results
    assert os.listdir(out) == ["eval.bin"]
    # asked for by name it goes, and is held
    tt("restore", book, 1, "--paths", out)
    assert not out.exists()
    checkpoints = kernel.command("list")["checkpoints"]
    held = [one["number"] for one in checkpoints if one["reason"] == "safety"]
    tt("restore", book, held[-1], "--paths", out)
    assert (out / "eval.bin").read_bytes() == results
    assert not (book.parent / "mine.txt").exists()
    tt("restore", book, held[0])
    assert (out / "eval.bin").read_bytes() == results
    assert (book.parent / "mine.txt").read_text() == "agent file"


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
            code = "import time\nwhile not os.path.exists('go'): time.sleep(0.05)\nprint(who)"
            slow.append(await ask.run(b, code))

        group.start_soon(sleeping)
        while not (await ask("status", notebook=str(b)))["busy"]:
            await anyio.sleep(0.02)
        await ask("restore", notebook=str(a), checkpoint="A-good")
        assert not slow, "b's cell was still running"
        assert (await ask.run(a, "who"))["result"] == "'A'"
        (b.parent / "go").touch()
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
        code = (
            "import os, time; open('begun', 'w').close()\n"
            "while not os.path.exists('go'): time.sleep(0.05)\n"
            "for i in range(8): log.append(i)\n"
        )
        cut = await ask("run_cell", notebook=str(book), code=code, timeout_s=1)
        assert (cut["state"], cut["outcome"], cut["checkpoint"]) == ("running", None, None)
        while not (book.parent / "begun").exists():
            await anyio.sleep(0.05)
        # refused within its limit: then nothing is made later either
        told = await ask.refused("checkpoint", notebook=str(book), label="hasty", timeout_s=0.1)
        assert told["ename"] == "KernelBusy" and cut["cell"] in told["evalue"]
        answers: dict[str, Any] = {}

        async def keep(name: str, tool: str, **more: Any) -> None:
            answers[name] = await ask(tool, notebook=str(book), **more)

        async with anyio.create_task_group() as group:  # both sent at once
            group.start_soon(lambda: keep("made", "checkpoint", label="after-timeout"))
            group.start_soon(lambda: keep("third", "run_cell", code="print(len(log))"))
            await anyio.sleep(0.3)  # most often both wait by then
            (book.parent / "go").touch()
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
