"""Checkpoints that are cut short, and many of them: what is in the store, and in the user's git."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from agent_world import MAIN, Agent, agent, end, ended, on_disk, server_of_agent

Start = Callable[..., Any]
MB = int(os.environ.get("TT_MB", "30"))
"""Size of what is large: the cases as they were written are run with TT_MB=200 TT_CELLS=120."""


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
@pytest.mark.timeout(400)  # four kernels end, each once it has written what it holds
async def test_07_the_server_is_killed(book: Path, start_notebook: Start, tt: Start) -> None:
    """The program that has started the kernel, while a checkpoint is being made."""
    for delay in (0.0, 0.01):
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
    server = server_of_agent()
    kernels = server.children()

    async def kill() -> None:
        await anyio.sleep(delay)
        os.kill(server.pid, signal.SIGKILL)
        await anyio.to_thread.run_sync(lambda: psutil.wait_procs(kernels, timeout=110))

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
    on_disk(lambda: tt("show", book, first, "--json"))
    sizes = [size_of(store)]
    middle = cells * 5 // 6
    for number in range(2, cells + 2):
        kernel.run(f"i = {number}; open('small.txt','w').write(str(i))")
        if number == middle:
            tt("checkpoint", book, "--label", "middle")
    last = tt("checkpoint", book, "--json")["checkpoint"]["number"]
    assert last - first >= cells
    tt("restore", book, "middle")  # its process is there
    assert kernel.run("print(i)", store_history=False).out == str(middle)
    tt("restore", book, last)
    for one in ("middle", last):
        on_disk(lambda: tt("show", book, one, "--json"))  # noqa: B023
    end(kernel)
    sizes.append(size_of(store))
    assert sizes[1] < 5 * sizes[0] and sizes[1] < 5 * 1.5 * megabytes * 1_000_000, sizes
    kernel = on(book)
    for checkpoint, number in ((last, cells + 1), ("middle", middle), (last, cells + 1)):
        tt("restore", book, checkpoint)
        found = kernel.run("print(i, open('small.txt').read(), arr.shape[0], arr[:9].mean() < 1)")
        assert found.out == f"{number} {number} {megabytes * 1_000_000 // 16} True"
    end(kernel)
    tt("delete", book, "--timeline", "--yes")
    sizes.append(size_of(store))
    assert sizes[2] < 20_000_000, sizes
    print(sizes)


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
