"""``jupyter timetravel`` on kernels that run, and the same on what they have left."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from agent_world import end, make_book, on_disk, without

from jupyter_timetravel import commands
from jupyter_timetravel.access import running
from jupyter_timetravel.access.live import LiveAccess
from jupyter_timetravel.wire import KernelGone
from tests.waiting import until

Start = Callable[..., Any]


def test_one_session_by_each_of_its_names(book: Path, on: Start, tt: Start, tmp_path: Path) -> None:
    other = on(make_book(tmp_path / "other" / "o.ipynb"))
    other.run("x = 'other'")
    kernel = on(book)
    kernel.run("x = 1")
    link = tmp_path / "link.ipynb"
    link.symlink_to(book)
    (mine, theirs) = tt("kernels", "--json")["kernels"]  # the newest first
    assert mine["notebook"] == str(book) and theirs["notebook"].endswith("o.ipynb")
    assert mine["connection_file"] == kernel.manager.connection_file
    names = [book, link, mine["id"], mine["id"][:8], mine["connection_file"], mine["timeline"]]
    listings = [tt("list", name, "--json") for name in [*names, "newest"]]
    assert listings[0]["timeline"] == mine["timeline"] and listings[0]["running"] is True
    listings.append(tt("list", "--json"))
    for found in listings:  # captures become ready meanwhile
        assert without(found, "captures") == without(listings[0], "captures")
    assert tt("status", theirs["id"], "--json")["timeline"] == theirs["timeline"]


def test_a_session_from_the_shell(book: Path, on: Start, tt: Start) -> None:
    kernel = on(book)
    kernel.cells("x = 1", "x = 2; open('a', 'w').write('a');")
    made = tt("checkpoint", book, "-m", "before the join", "--label", "join", "--pin", "--json")
    record = made["checkpoint"]
    assert (record["label"], record["comment"], record["pinned"]) == (
        "join",
        "before the join",
        True,
    )
    kernel.run("x = 3; y = 4; open('a', 'w').write('b!');")
    assert "before the join" in tt("list", book)
    assert [one["label"] for one in tt("list", book, "--manual", "--json")["checkpoints"]] == [
        "join"
    ]
    assert tt("show", book, "join", "--json")["variables"]["x"]["value"] == "2"
    found = tt("diff", book, "join", "--json")
    assert [one["name"] for one in found["variables"]["added"]] == ["y"]  # the kernel knows
    assert [one["path"] for one in found["files"]] == ["a"]
    plan = tt("restore", book, "join", "--dry-run", "--json")
    assert plan["dry_run"] and kernel.run("print(x)").out == "3"
    assert "restored" in tt("restore", book, "join")
    assert kernel.run("print(x, 'y' in dir(), open('a').read())").out == "2 False a"
    tt("restore", book, "--undo")
    assert kernel.run("print(x, y, open('a').read())").out == "3 4 b!"
    tt("restore", book, "join", "--vars", "x")
    assert kernel.run("print(x, y, open('a').read())").out == "2 4 b!"
    kernel.run("open('c', 'w').write('c!');")
    told = tt("restore", book, "join", "--paths", book.parent / "a", "--json")
    assert [one["path"] for one in told["files"]] == ["a"]
    assert kernel.run("print(x, y, open('a').read(), open('c').read())").out == "2 4 a c!"
    for wrong in (("--vars", "x", "--paths", "a"), ("--paths", "a", "--only", "files")):
        assert "goes with a checkpoint alone" in tt("restore", book, "join", *wrong, status=1)
    tt("restore", book, "join", "--only", "files")
    assert kernel.run("import os; print(x, y, os.path.exists('c'))").out == "2 4 False"
    on_disk(lambda: tt("show", book, "join", "--json"))
    assert tt("verify", book, "join", "--json")["verified"][0]["problems"] == []


def test_the_store_tells_the_same_when_the_kernel_has_ended(
    book: Path, on: Start, tt: Start
) -> None:
    kernel = on(book)
    kernel.cells("x = 1", "x = 2; open('a', 'w').write('a');", "y = 3; open('a', 'w').write('b!');")
    kernel.head()
    live = [
        tt("list", book, "--json"),
        tt("show", book, 2, "--json"),
        tt("diff", book, 1, 3, "--json"),
    ]
    restored = tt("restore", book, 2, "--dry-run", "--json")
    end(kernel)
    kept = [
        tt("list", book, "--json"),
        tt("show", book, 2, "--json"),
        tt("diff", book, 1, 3, "--json"),
    ]

    # processes end with their kernel; what of a state fits is a question to what is stored
    moving = ("captures", "running", "restorable_here")
    assert without(live, *moving) == without(kept, *moving)
    again = tt("restore", book, 2, "--dry-run", "--json")
    assert set(restored) <= {*again, "environment_differs", "environment_paths"}
    assert restored["files"] == again["files"]
    assert {one["engine"] for one in kept[1]["checkpoint"]["captures"] if one["state"] == "ready"}
    assert "no kernel runs" in tt("checkpoint", book, status=1).lower()
    assert "no kernel runs" in tt("restore", book, 2, "--only", "process", status=1).lower()
    assert tt("replay", book, 1, "--json", status=1)["ename"] == "NotRunning"
    tt("restore", book, 2)
    assert (book.parent / "a").read_text() == "a"
    tt("restore", book, "--undo")
    assert (book.parent / "a").read_text() == "b!"


def test_the_checkpoint_of_the_last_cell_is_kept_when_the_kernel_ends_at_once(
    book: Path, on: Start, tt: Start
) -> None:
    """As after a notebook that a program runs: nobody waits between the reply and the end."""
    kernel = on(book, "--Supervisor.durability_at_end=60")
    kernel.run("for n in range(2000): open(f'f{n}', 'w').write(str(n) * 1000)")  # takes its time
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel()
    listed = tt("list", book, "--json")["checkpoints"]
    assert [one["number"] for one in listed] == [0, 1]
    (book.parent / "f0").unlink()
    tt("restore", book, 1)
    assert (book.parent / "f0").read_text() == "0" * 1000


def test_what_is_not_there_is_refused_by_name(book: Path, on: Start, tt: Start) -> None:
    assert "No kernel with time travel runs" in tt("list", status=1)
    assert tt("status", "--json", status=1)["ename"] == "NoSuchKernel"
    kernel = on(book)
    kernel.run("x = 1")
    file = kernel.manager.connection_file
    told = tt("restore", book, 99, "--json", status=1)
    assert (told["command"], told["status"], told["ename"]) == (
        "restore",
        "error",
        "UnknownCheckpoint",
    )
    assert "Name one checkpoint" in tt("restore", book, status=1)
    kept = Path(file).read_text()
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel()
    Path(file).write_text(kept)  # as a server that was killed leaves it
    assert tt("kernels", "--json")["kernels"] == []
    assert "No kernel answers" in tt("list", file, status=1)


def test_a_kernel_with_much_to_do_is_waited_for(
    book: Path, on: Start, tt: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not answer at once is not taken for one that has ended."""
    kernel = on(book)
    kernel.run("x = 1")
    process = psutil.Process(kernel.pid)
    survey = running.survey

    def survey_in_vain(timeout: float) -> list[running.RunningKernel]:
        monkeypatch.setattr(running, "survey", survey)
        process.suspend()
        try:
            return survey(timeout)
        finally:
            process.resume()

    monkeypatch.setattr(running, "survey", survey_in_vain)
    made = tt("checkpoint", book, "--json")["checkpoint"]
    assert made["id"] == tt("list", book, "--json")["head"]


def test_usage_is_told_apart(tt: Start) -> None:
    for words in (("restore",), ("checkpoint", "--timeout", "0"), ("nonsense",)):
        with pytest.raises(SystemExit) as caught:
            tt(*words)
        assert caught.value.code == 2


def test_a_checkpoint_waits_for_the_cell_or_says_that_it_may_still_come(
    book: Path, on: Start, tt: Start
) -> None:
    kernel = on(book)
    kernel.run("import pathlib, time")
    cell = kernel.send("while not pathlib.Path('go').exists(): time.sleep(0.01)\nx = 'ended'")
    until(lambda: tt("status", book, "--json")["busy"])
    told = tt("checkpoint", book, "--label", "early", "--timeout", "5", status=3)
    assert "may still do" in told
    found: list[Any] = []
    waiting = threading.Thread(
        target=lambda: found.append(tt("checkpoint", book, "--label", "late", "--json"))
    )
    waiting.start()
    (book.parent / "go").write_text("")
    waiting.join()
    kernel.wait(cell)
    for name in ("early", "late"):  # neither is of the middle of the cell
        assert tt("show", book, name, "--json")["variables"]["x"]["value"] == "'ended'"


def test_deleting(book: Path, on: Start, tt: Start, tmp_path: Path) -> None:
    kernel = on(book)
    kernel.cells("x = 1", "x = 2", "x = 3")
    tt("checkpoint", book, "--label", "kept", "--pin")
    kernel.run("x = 4")
    assert "--yes" in tt("delete", book, 1, status=4)
    assert tt("delete", book, 1, "--json", status=4)["ename"] == "NotConfirmed"
    assert [one["number"] for one in tt("delete", book, 1, "--yes", "--json")["deleted"]] == [1]
    assert "pinned" in tt("delete", book, "kept", "--yes", status=1)
    on_disk(lambda: tt("show", book, "kept", "--json"))
    assert "A kernel runs" in tt("delete", book, "--timeline", "--yes", status=1)
    end(kernel)
    assert "next kernel starts there" in tt("delete", book, -1, "--yes", status=1)
    tt("delete", book, 2, "--yes")
    left = [one["number"] for one in tt("list", book, "--json")["checkpoints"]]
    assert 1 not in left and 2 not in left and 3 in left
    kernel = on(book)  # what is left can still be gone back to
    kernel.run("%restore kept")
    assert kernel.run("print(x)").out == "3"
    end(kernel)
    tt("delete", book, "--timeline", "--yes")
    assert "no session of" in tt("list", book, status=1)
    held = [
        p for p in (tmp_path / "store").rglob("*") if p.is_file() and p.stat().st_size > 100_000
    ]
    names = {path.name for path in held}
    assert not {n for n in names if not n.startswith("timelines.sqlite") and n != "reserve"}, names


def test_every_command_gives_one_object(book: Path, on: Start, tt: Start, tmp_path: Path) -> None:
    kernel = on(book)
    kernel.run("x = 1")
    end(kernel)
    file = tmp_path / "n.ttl"
    calls: list[tuple[Any, ...]] = [
        ("doctor",),
        ("kernels",),
        ("sessions",),
        ("du",),
        ("check",),
        ("prune", "--dry-run"),
        ("export", book, "-o", file),
        ("import", file),
        ("export-notebook", book, tmp_path / "clean.ipynb"),
        ("install", "--prefix", tmp_path / "prefix"),
        ("verify", book),
    ]
    for call in calls:
        told = tt(*call, "--json")
        assert (told["version"], told["command"], told["status"]) == (1, call[0], "ok"), told
    copy = tt("import", file, "--json")["timeline"]
    other = make_book(tmp_path / "else" / "e.ipynb")
    assert tt("adopt", copy, other, "--json")["notebook"] == str(other)
    assert tt("trust", copy, "--yes", "--json")["timeline"] == copy


def test_a_kernel_that_ends_before_it_answers(book: Path, on: Start) -> None:
    kernel = on(book)
    kernel.run("x = 1")
    with closing(LiveAccess(running.at(kernel.manager.connection_file), 60.0)) as access:
        process = psutil.Process(kernel.pid)
        process.suspend()
        threading.Timer(0.5, process.kill).start()
        with pytest.raises(KernelGone, match="may have been done"):
            access.ask(commands.checkpoint("never"))
    kernel.client.stop_channels()
