"""A server that is told to end does so, whatever it is asked for at that moment."""

from __future__ import annotations

from pathlib import Path

from tests.server.server_world import messages, running
from tests.waiting import PATIENCE

STREAM = {"Accept": "text/event-stream"}


def test_a_server_ends_while_it_waits_for_others(tmp_path: Path) -> None:
    """Who listens to events, and a group that waits for a cell without end, hold it up no more."""
    arguments = ("--TimeTravelServer.events=True",)
    with running(tmp_path, *arguments) as server, server.as_user() as http:
        pair = server.start("a.ipynb"), server.start("b.ipynb")
        for kernel in pair:
            kernel.run("x = 1")
        asked = {"group": "waits", "members": [kernel.id for kernel in pair]}
        assert http.post("/groups", json=asked).status_code == 201
        pair[1].begin("import time\nwhile True:\n    time.sleep(0.1)")
        with (
            server.as_user() as listener,
            listener.stream("GET", f"/sessions/{pair[0].id}/events", headers=STREAM) as events,
            http.stream(
                "POST", "/groups/waits/checkpoints", json={"timeout": 3000}, headers=STREAM
            ) as answer,
        ):
            assert events.status_code == 200
            told = messages(answer)
            while "(busy)" not in next(told).get("text", ""):
                pass

            server.process.terminate()
            assert server.process.wait(PATIENCE) == 0
    log = server.log.read_text()
    assert "Traceback" not in log and "was destroyed but it is pending" not in log
