"""Somebody else's timeline over REST: looked at, never loaded before a person trusts it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.exchange.conftest import call, end
from tests.kernel.durable_world import durable
from tests.server.server_world import Server


def test_what_no_person_has_trusted_is_not_loaded(
    server: Server,
    http: httpx.Client,
    start_notebook: Callable[..., Any],
    tmp_path: Path,
) -> None:
    probe, file = tmp_path / "ran", tmp_path / "t.ttl"
    book = tmp_path / "theirs" / "n.ipynb"
    book.parent.mkdir()
    book.write_text("{}")
    env = {
        "JPY_SESSION_NAME": str(book),
        "JUPYTER_TIMETRAVEL_KEYS": str(tmp_path / "their-keys"),
    }
    kernel = start_notebook("--Supervisor.images=False", cwd=book.parent, env=env)
    kernel.run(
        "class Probe:\n"
        f"    def __reduce__(self): return open, ({str(probe)!r}, 'w')\n"
        "x = Probe(); y = 1; open('f', 'w').write('theirs')"
    )
    kernel.run("%checkpoint made")
    assert durable(kernel, 2)["state"] == "ready"
    end(kernel)
    keys = {"JUPYTER_TIMETRAVEL_KEYS": env["JUPYTER_TIMETRAVEL_KEYS"]}
    call("export", book, "-o", file, store=tmp_path / "store", **keys)
    mine = server.notebooks / "foreign" / "n.ipynb"
    mine.parent.mkdir()
    mine.write_text("{}")
    ours = {"JUPYTER_TIMETRAVEL_KEYS": server.env["JUPYTER_TIMETRAVEL_KEYS"]}
    told = call("import", file, "--as", mine, store=server.root / "store", **ours)
    id = told.partition(" as ")[2].split()[0]

    for path in ("", "/checkpoints", "/checkpoints/made", "/cells", "/diff?a=1&b=made"):
        answer = http.get(f"/sessions/{id}{path}")
        assert answer.status_code == 200, (path, answer.text)
    assert http.get(f"/sessions/{id}").json()["trusted"] is False
    for path, body in (
        ("/restore", {"checkpoint": "made"}),
        ("/restore", {"checkpoint": "made", "only": "files"}),
        ("/restore", {"checkpoint": "made", "vars": ["y"]}),
        ("/resume", {}),
        ("/replay", {"checkpoint": "made"}),
        ("/verify", {"checkpoint": "made"}),
    ):
        answer = http.post(f"/sessions/{id}{path}", json=body)
        assert 400 <= answer.status_code < 500, (path, body, answer.text)
        if path in ("/restore", "/verify") and "vars" not in body:
            assert answer.json()["error"] == "NotTrusted", (path, body, answer.text)
    assert not probe.exists() and not (mine.parent / "f").exists()
