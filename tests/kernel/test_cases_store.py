"""The cases `store` as a user meets them; store-10 and store-13 are in tests/exchange."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernel_runtime.store.digests import digest_of
from tests.exchange.conftest import call, end
from tests.kernel.durable_world import durable, kill, timeline

MIB = 1 << 20
Start = Callable[..., Any]


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "work" / "n.ipynb"
    path.parent.mkdir()
    path.write_text("{}")
    return path


@pytest.fixture
def on(start_notebook: Start, book: Path, tmp_path: Path) -> Start:
    """Start a kernel of the notebook."""

    def start(*arguments: str, **env: str) -> Any:
        env = {"JPY_SESSION_NAME": str(book), **env}
        images = "--Supervisor.images=False"  # variables are what is brought back
        return start_notebook(images, *arguments, cwd=book.parent, env=env)

    return start


@pytest.fixture
def tt(tmp_path: Path) -> Callable[..., str]:
    """The command line on that store."""
    return lambda *words, **more: call(*words, store=tmp_path / "store", **more)


def free(where: Path) -> int:
    found = os.statvfs(where)
    return found.f_bavail * found.f_frsize


@pytest.mark.root
def test_01_the_disk_fills_up(small: Path, on: Start, tt: Any, book: Path) -> None:
    notebook = on("--Supervisor.auto=off")
    notebook.run("import os; open('a.bin', 'wb').write(os.urandom(20 << 20))")
    notebook.run("%checkpoint fits")
    assert durable(notebook, 1)["state"] == "ready"
    before = free(small)
    notebook.run("for n in 'bc': open(n + '.bin', 'wb').write(os.urandom(40 << 20))")
    for comment in ("does not fit", "again"):
        told = notebook.run(f"%checkpoint {comment}").out
        assert "No room in the store" in told and "are free" in told
        assert abs(before - free(small)) < MIB
    # what is in memory is held all the same, and the list tells what is not
    assert timeline(notebook).count("files not captured") == 2
    assert notebook.run("big = os.urandom(60 << 20); len(big)").result == str(60 << 20)
    notebook.run("os.remove('b.bin'); os.remove('c.bin')")
    # the files fit now, the variables do not: the checkpoint is there, and says so
    notebook.run("%checkpoint files only")
    failed = durable(notebook, notebook.head()["number"])
    assert failed["state"] == "failed" and "are free" in failed["error"]
    assert abs(before - free(small)) < MIB
    notebook.run("%restore fits")
    assert (book.parent / "a.bin").stat().st_size == 20 << 20
    end(notebook)
    with open(small / "filler", "wb") as filler:
        for size in (MIB, 4096, 1):
            try:
                while True:
                    os.write(filler.fileno(), b"x" * size)
            except OSError:
                pass
    assert free(small) == 0
    assert '"fits"' in tt("list", book)
    tt("prune", book, "--session")
    assert free(small) > 18 * MIB
    assert "all is well" in tt("check")


def test_02_killed_again_and_again(on: Start, tt: Any, book: Path) -> None:
    """A number that was printed is there, with its files, whenever the kernel is killed."""
    number, sizes = 0, {}
    for after_s in (0.15, 0.4, 0.8):
        notebook = on("--Supervisor.auto=off")
        notebook.run("run = get_ipython().run_line_magic")
        sent = notebook.send(
            f"for i in range({number}, 1000):\n"
            "    open(f'd{i % 5}', 'w').write('x' * 5000 + str(i))\n"
            "    run('checkpoint', f'c{i}'); print('made', i, 'of all', flush=True)"
        )
        notebook.until_printed(sent, "of all")
        time.sleep(after_s)
        kill(notebook)
        said = [m for m in notebook.settle() if m["msg_type"] == "stream"]
        text = "".join(m["content"]["text"] for m in said)
        made = [int(number) for number in re.findall(r"made (\d+) of all", text)]
        for i in made:
            sizes[i] = f"c{i}"
        number = max([number, *made]) + 2
        assert "all is well" in tt("check")
    assert len(sizes) >= 3
    listed = json.loads(tt("list", book, "--json"))["checkpoints"]
    assert set(sizes.values()) <= {one["comment"] for one in listed}
    for i in (min(sizes), max(sizes)):
        tt("restore", book, f"c{i}")
        assert (book.parent / f"d{i % 5}").read_text() == "x" * 5000 + str(i)


@pytest.fixture
def clock(tmp_path: Path, ability: Any) -> Callable[[int], dict[str, str]]:
    """Sets the calendar clock of kernels so many seconds off; what puts them under it."""
    library, file = tmp_path / "clock.so", tmp_path / "clock"
    command = ["cc", "-shared", "-fPIC", "-o", str(library), str(Path(__file__).parent / "clock.c")]
    found = shutil.which("cc") and subprocess.run(command, check=False).returncode == 0
    ability("a C compiler", bool(found))

    def set_to(seconds: int) -> dict[str, str]:
        file.write_text(str(seconds))
        return {"LD_PRELOAD": str(library), "TT_CLOCK": str(file)}

    return set_to


def test_05_the_clock_goes_back(on: Start, tt: Any, book: Path, clock: Any) -> None:
    year = 365 * 86400
    notebook = on("--Supervisor.auto=off", **clock(0))
    for comment, offset in (("t1", 0), ("t2", -6 * year), ("t3", 70 * year), ("t4", 600)):
        clock(offset)
        notebook.run(f"x = {comment!r}; open('x', 'w').write(x)")
        notebook.run(f"%checkpoint {comment}")
        assert durable(notebook, notebook.head()["number"])["state"] == "ready"
    notebook.run("%restore t2")
    assert notebook.run("print(x, open('x').read())").out == "t2 t2"
    # the present time, not that of the checkpoint
    assert float(notebook.run("import time; print(time.time())").out) > time.time() + 500
    notebook.run("%restore t4")
    end(notebook)
    listed = json.loads(tt("list", book, "--json"))["checkpoints"]
    assert [c["comment"] for c in listed if c["reason"] == "manual"] == ["t1", "t2", "t3", "t4"]
    numbers = [c["number"] for c in listed]
    assert numbers == sorted(set(numbers))
    rows = {c: next(r for r in tt("list", book).splitlines() if c in r) for c in ("t1", "t2", "t3")}
    assert [c for c, row in rows.items() if "the clock was off" in row] == ["t2", "t3"], rows
    # what was asked for stays whatever the clock says; so does the newest
    told = tt("prune", book, "--older-than", "30d")
    after = json.loads(tt("list", book, "--json"))["checkpoints"]
    assert {"t1", "t2", "t3", "t4"} <= {c["comment"] for c in after}, told
    again = on("--Supervisor.auto=off")
    again.run("%restore t3")
    assert again.run("print(x, open('x').read())").out == "t3 t3"


def test_07_growth(on: Start, tt: Any, book: Path, tmp_path: Path) -> None:
    notebook = on("--Supervisor.auto=off", "--Supervisor.durability=idle")
    notebook.run(
        "for i in range(25):\n"
        "    open('log.txt', 'a').write('line\\n' * 20_000)\n"
        "    get_ipython().run_line_magic('checkpoint', f'{i}')"
    )
    notebook.run("import os; big = os.urandom(20 << 20)")
    for i in range(3):
        notebook.run(f"%checkpoint m{i}")
        assert durable(notebook, notebook.head()["number"])["state"] == "ready"
    end(notebook)
    found = json.loads(tt("du", "--json"))
    (row,) = found["sessions"]
    # whole copies would take 25 * 1.3 MB and 60 MB
    assert 20 << 20 < row["unique_bytes"] < 35 << 20
    files = [p.lstat() for p in (tmp_path / "store").rglob("*") if p.is_file()]
    on_disk = sum(f.st_blocks * 512 for f in files)
    assert abs(found["store_bytes"] - on_disk) < 0.05 * on_disk
    book.unlink()
    assert "notebook gone" in tt("sessions")
    tt("prune", row["id"], "--session")
    files = [p.lstat() for p in (tmp_path / "store").rglob("*") if p.is_file()]
    assert sum(f.st_blocks * 512 for f in files) < 10 << 20


def harmed(file: Path, how: str) -> None:
    if how == "flip":
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    elif how == "truncate":
        os.truncate(file, 3)
    elif how == "delete":
        file.unlink()
    else:
        file.chmod(0)


@pytest.mark.parametrize("how", ["flip", "truncate", "delete", "chmod 000"])
def test_08_one_damaged_blob(on: Start, tt: Any, book: Path, tmp_path: Path, how: str) -> None:
    if how == "chmod 000" and os.geteuid() == 0:
        pytest.skip("missing ability: an ordinary user (root reads everything)")
    store, work = tmp_path / "store", book.parent
    notebook = on("--Supervisor.auto=off")
    notebook.run("for n in 'abcdef': open(n, 'w').write(n * 100_000)\nz = 1")
    notebook.run("%checkpoint A")
    assert durable(notebook, 1)["state"] == "ready"
    piece = b"c" * 65_536
    (blob,) = store.glob(f"blobs/*/{digest_of(piece)}")
    harmed(blob, how)
    notebook.run("for n in 'abcdef': open(n, 'w').write('new')\nz = 2")
    error = notebook.run("%restore A", ok=False).error
    assert " c:" in error and ("Nothing was changed" in error or "put back" in error), error
    assert {(work / n).read_text() for n in "abcdef"} == {"new"}
    assert notebook.run("z").result == "2"
    tt("check", status=1)
    # the variables alone are held
    notebook.run("%restore A --only process")
    assert notebook.run("z").result == "1"
    notebook.run("open('c', 'w').write('c' * 100_000)")
    notebook.run("%checkpoint B")
    for name in ("B", "A"):
        notebook.run(f"%restore {name}")
        assert (work / "c").read_text() == "c" * 100_000
    end(notebook)
    assert "all is well" in tt("check")


COMMENTS = [
    "", "  ", "plain", "it's \"quoted\"; DROP TABLE x;--", "two\nlines",
    "\x1b]0;owned\x07\x1b[2J", "<img src=x onerror=alert(1)>", "{x} $HOME `id`",
    "日本語 👩‍👩‍👧 e\u0301", "\u202eevil", "a\x00b", "\ud800", "--force", "# not a comment",
    "x" * 1_000_000,
]  # fmt: skip


def test_11_comments_with_any_content(on: Start, tt: Any, book: Path) -> None:
    notebook = on("--Supervisor.auto=off")
    cell = notebook.run(
        f"cs = {COMMENTS!a}\nrun = get_ipython().run_line_magic\n"
        "for n, c in enumerate(cs):\n"
        "    try: run('checkpoint', c)\n"
        "    except Exception as e: print('refused', n, type(e).__name__, e)"
    )
    refused = {int(line.split()[1]) for line in cell.out.splitlines() if line[:7] == "refused"}
    shown = notebook.run("%timeline --all").of_type("display_data")[0]["content"]["data"]
    assert "<img" not in shown["text/html"] and "&lt;img" in shown["text/html"]
    end(notebook)
    lines = tt("list", book).splitlines()
    listed = json.loads(tt("list", book, "--json"))["checkpoints"]
    assert len(lines) == 1 + len(listed)
    assert not any(ord(c) < 32 or c in "\x7f\u202e" for line in lines for c in line)
    kept = {c["comment"] for c in listed if c["reason"] == "manual"}
    assert refused == {10, 11, 12}, cell.out  # NUL, half a surrogate pair, an option
    accepted = [" ".join(c.split()) for n, c in enumerate(COMMENTS) if n not in refused]
    told = {" ".join((c["comment"] or "").split()) for c in listed if c["reason"] == "manual"}
    cut = [c for c in told if c.startswith("xxx")]
    assert {"plain", 'it\'s "quoted"; DROP TABLE x;--', "{x} $HOME `id`"} <= kept
    assert {c for c in accepted if not c.startswith("xxx")} <= told, (accepted, told)
    assert len(cut) == 1 and len(cut[0]) >= 1000
    if len(cut[0]) < 1_000_000:
        assert "cut" in cell.out or "shortened" in cell.out, "a notice says so"
    # where the terminal knows ASCII alone
    assert len(tt("list", book, LC_ALL="C", PYTHONIOENCODING="").splitlines()) == len(lines)
    again = on("--Supervisor.auto=off")
    again.run("%checkpoint plain")
    error = again.run("%restore plain", ok=False).error
    assert "plain" in error and "#" in error, error


def test_a_second_kernel_says_that_its_timeline_ends_with_it(on: Start) -> None:
    first = on()
    first.run("x = 1")
    second = on()
    told = second.run("x = 2").text("stderr")
    assert f"Another kernel (process {first.pid} " in told
    assert "ends with it" in told and "shut one of the two down" in told
    assert second.run("%restore 1").out.startswith("restored #1")
    assert second.run("x").text("stderr") == ""  # once


def test_a_store_that_cannot_be_used_is_told_though_nothing_is_covered(
    on: Start, tmp_path: Path
) -> None:
    (tmp_path / "store").write_text("no directory")
    notebook = on("--Supervisor.environment=off")
    told = notebook.run("x = 1").text("stderr")
    assert "The timeline is not stored" in told and str(tmp_path / "store") in told
    notebook.run("x = 2")
    notebook.run("%restore 1")
    assert notebook.run("x").result == "1"
    (tmp_path / "store").unlink()
