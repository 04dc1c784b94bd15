"""The Python client against real kernels: ours, and one without time travel."""

from __future__ import annotations

import threading

import pytest
from jupyter_client.manager import start_new_kernel

import jupyter_timetravel
from jupyter_timetravel import AsyncClient, Client
from jupyter_timetravel.wire import NoTimeTravel, RequestTimeout
from kernel_runtime.errors import BadRequest, RestoreRefused, UnknownCheckpoint
from kernel_runtime.timeline import DeleteRefused


@pytest.fixture
def client(notebook):
    with Client(notebook.client) as client:
        yield client


def test_a_session_from_outside(notebook, client):
    notebook.cells("x = 1", "y = [1, 2]; open('a', 'w').write('a');")
    made = client.checkpoint("before the join", label="join", pin=True)
    assert (made.comment, made.label, made.pinned, made.is_auto) == (
        "before the join",
        "join",
        True,
        False,
    )
    assert made.is_head and made.created_at.tzinfo is not None
    notebook.run("x = 2; z = 5; open('a', 'w').write('bb');")

    records = client.list()
    assert [r.number for r in records] == sorted(r.number for r in records)
    assert records[-1].history == tuple(r.id for r in records[:-1])
    assert [r.number for r in client.list(include_auto=False)] == [made.number]
    (alone,) = client.list(include_auto=False)
    assert alone.history == made.history and len(made.history) == made.number
    assert [r.id for r in client.list(history="join")] == [*made.history, made.id]
    assert client.get("join").variables["x"]["value"] == "1"
    assert client.get(made.id[:8]).id == client.get(made.number).id == made.id

    found = client.diff("join")
    assert [v.name for v in found.added] == ["z"]
    assert [(c.name, c.before.value, c.after.value) for c in found.changed] == [("x", "1", "2")]
    assert [(f.path, f.kind, f.size_before, f.size_after) for f in found.files] == [
        ("a", "changed", 1, 2)
    ]
    assert client.diff(made.number, made.number).is_empty

    plan = client.restore("join", dry_run=True)
    assert (
        plan.dry_run and plan.safety is None and [v.name for v in plan.differences.removed] == ["z"]
    )
    done = client.restore("join")
    assert done.checkpoint.id == made.id and done.safety.reason == "safety"
    assert done.text.startswith("restored #") and done.took_ms > 0
    assert notebook.run("print(x, y, 'z' in dir(), open('a').read())").out == "1 [1, 2] False a"
    client.restore(undo=True)
    assert notebook.run("print(x, z, open('a').read())").out == "2 5 bb"


def test_names_status_and_config(notebook, client):
    notebook.cells("x = 1", "x = 2")
    assert client.label(1, "first").label == "first"
    assert client.label("first", None).label is None
    assert client.pin(1).pinned and not client.pin(1, False).pinned
    assert client.delete(1).number == 1
    status = client.status()
    assert status.head.number == 2 and not status.busy and status.counts["checkpoints"] >= 2
    assert client.config()["auto"] == "cell"
    assert client.config(auto="off")["auto"] == "off"


def test_errors_come_as_their_own_classes(notebook, client):
    notebook.run("x = 1")
    with pytest.raises(UnknownCheckpoint, match="no checkpoint 99"):
        client.restore(99)
    with pytest.raises(DeleteRefused):
        client.delete(-1)
    with pytest.raises(BadRequest):
        client.config(auto="sometimes")
    with pytest.raises(BadRequest):
        client.checkpoint("a\0b")
    assert notebook.run("print(x)").out == "1"


def test_messages_of_others_stay_where_they_are(notebook, client):
    """A reply that the notebook's own client waits for is not taken by ours, nor the reverse."""
    notebook.run("x = 1")
    request = notebook.client.session.msg("kernel_info_request", {})
    notebook.client.control_channel.send(request)
    assert client.list()
    cell = notebook.run("print(x)")
    assert cell.out == "1"
    reply = notebook.client.get_control_msg(timeout=60)
    assert reply["parent_header"]["msg_id"] == request["header"]["msg_id"]


def test_a_checkpoint_waits_for_the_running_cell(notebook, client):
    running = notebook.send("import time; print('in'); time.sleep(1); done = 1")
    notebook.until_printed(running)
    record = client.checkpoint("after")
    assert notebook.wait(running).status == "ok"
    assert client.get(record.id).variables["done"]["value"] == "1"


def wait_for(events, name):
    """The next event of that name; others come between, when captures become durable."""
    return next(event for event in events if event.name == name)


def test_events(notebook, client):
    with client.events(timeout=60) as events:
        cell = notebook.send("x = 1")
        created = wait_for(events, "checkpoint_created")
        notebook.wait(cell)
        assert created.checkpoint.code == "x = 1"
        assert created.checkpoint.history == client.get(created.checkpoint.id).history
        client.label(1, "L")
        while wait_for(events, "checkpoint_changed").checkpoint.label != "L":
            pass
        client.restore(1)
        names = []
        for event in events:
            assert event.missed == 0
            names.append(event.name)
            if event.name == "restore_finished":
                break
        assert {"restore_started", "checkpoint_created", "restore_progress"} <= set(names)


def test_of_two_who_go_back_at_once_one_wins_and_the_other_is_told(notebook, client):
    """Case ui-05: the first has not ended, as the cell that runs does not let it."""
    notebook.cells("x = 1", "x = 2")
    stubborn = """import os, time; print('in', flush=True)
while not os.path.exists('go'):
    try: time.sleep(0.01)
    except KeyboardInterrupt: pass"""
    running = notebook.send(stubborn)
    notebook.until_printed(running)
    first = []
    with Client.from_connection_file(notebook.manager.connection_file) as winner:
        asked = threading.Thread(target=lambda: first.append(winner.restore(1, force=True)))
        with client.events(timeout=60) as events:
            asked.start()
            wait_for(events, "restore_started")
            for ask in (
                lambda: client.restore(2),
                lambda: client.restore(undo=True),
                lambda: client.replay(1),
            ):
                with pytest.raises(RestoreRefused, match="is going back already"):
                    ask()
            (notebook.cwd / "go").touch()
            finished = wait_for(events, "restore_finished")
        asked.join()
    assert first[0].checkpoint.number == finished.content["checkpoint"]["number"] == 1
    notebook.wait(running)
    assert notebook.run("print(x)").out == "1"
    # one restore, and the next one is served
    assert [r.reason for r in client.list()].count("safety") == 1
    client.restore(2)
    assert notebook.run("print(x)").out == "2"


def test_two_streams_see_the_same_and_one_can_time_out(notebook, client):
    with client.events(timeout=60) as first, client.events(timeout=60) as second:
        notebook.run("x = 1")
        one, two = (wait_for(stream, "checkpoint_created") for stream in (first, second))
        assert one.content == two.content
        first.timeout = 0.2
        assert all(event.name == "checkpoint_changed" for event in first)
        first.timeout = 60
        notebook.run("x = 2")
        assert wait_for(first, "checkpoint_created").checkpoint.code == "x = 2"


def test_from_a_connection_file(notebook):
    with Client.from_connection_file(notebook.manager.connection_file) as client:
        assert client.status().timeline
    client.close()


def test_the_checkpoint_of_a_cell_is_there_once_its_reply_is(notebook, client):
    for n in range(1, 21):
        notebook.run(f"x = {n}")
        assert client.get(-1).number == n


def test_threads_have_a_client_each(notebook):
    notebook.run("x = 1")
    found = []

    def look():
        with Client(notebook.client) as client:
            found.extend(client.get(1).number for _ in range(20))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 80


async def test_the_same_with_asyncio(notebook):
    notebook.run("x = 1")
    async with AsyncClient(notebook.client) as client:
        made = await client.checkpoint("c", label="L")
        assert [r.number for r in await client.list(include_auto=False)] == [made.number]
        assert (await client.get("L")).variables["x"]["value"] == "1"
        assert (await client.diff("L")).is_empty
        assert (await client.pin("L")).pinned
        assert not (await client.pin("L", False)).pinned
        assert (await client.label("L", "M")).label == "M"
        assert (await client.config(auto="off"))["auto"] == "off"
        assert (await client.status()).head.number == made.number
        events = await client.events(timeout=60)
        second = await client.checkpoint("d")
        async for event in events:
            if event.name != "checkpoint_created":
                continue
            assert event.checkpoint.id == second.id
            with pytest.raises(Exception, match=r"await client\.get"):
                _ = event.checkpoint.history
            break
        await events.aclose()
        assert (await client.delete("M")).number == made.number
        notebook.run("x = 2")
        assert (await client.restore("d")).checkpoint.id == second.id
        with pytest.raises(UnknownCheckpoint):
            await client.get(99)
    assert notebook.run("print(x)").out == "1"


def test_a_kernel_without_time_travel_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    manager, kernel_client = start_new_kernel(kernel_name="python3")
    try:
        with Client(kernel_client) as client, pytest.raises(NoTimeTravel) as caught:
            client.list()
        assert "ipython" in str(caught.value) and "python3-timetravel" in str(caught.value)
    finally:
        kernel_client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_kernel_that_is_gone_is_told_in_time(notebook):
    with Client(notebook.client) as client:
        client.status()
        notebook.manager.shutdown_kernel(now=True)
        client.timeout = 0.5
        with pytest.raises(RequestTimeout, match=r"status within 0\.5 seconds"):
            client.status()


def test_the_package_is_light_and_knows_its_names():
    import subprocess
    import sys

    code = "import sys, jupyter_timetravel; print('zmq' in sys.modules, 'IPython' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"], done.stderr
    with pytest.raises(AttributeError):
        _ = jupyter_timetravel.nothing
