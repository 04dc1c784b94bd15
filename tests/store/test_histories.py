"""Random histories on a real store: whatever is pruned, what stays has all that it needs.

Checkpoints share content with each other and with another notebook, some are stored as deltas to
older ones, the session goes back and branches, single ones are deleted, and rules prune through the
command line, time and again.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_world import Session

from jupyter_timetravel import cli

NOISE = random.Random(1).randbytes(73_000)
VERSIONS = [bytes((byte + n) % 256 for byte in NOISE) for n in range(4)]  # deltas to each other
contents = st.sampled_from([*VERSIONS, *(bytes([65 + n]) * 3000 for n in range(3))])
made = st.tuples(
    st.just("made"),
    st.tuples(contents, contents),  # files
    st.lists(contents, min_size=1, max_size=2),  # variables
    st.sampled_from(["manual", "cell", "cell"]),
    st.integers(0, 100),  # hours ago
)
back = st.tuples(st.just("back"), st.integers(0, 30))
deleted = st.tuples(st.just("deleted"), st.integers(0, 30))
pruned = st.tuples(
    st.just("pruned"),
    st.sampled_from(
        [
            ("--keep-last", "0"),
            ("--keep-last", "2"),
            ("--keep-last", "1", "--hourly", "3"),
            ("--older-than", "30h"),
            ("--budget", "150000"),
        ]
    ),
)
steps = st.lists(st.one_of(made, made, made, back, deleted, pruned), min_size=3, max_size=12)


@settings(
    max_examples=int(os.environ.get("TT_HISTORIES", "4")),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=steps)
def test_what_stays_has_all_that_it_needs(steps, monkeypatch, capsys):
    with tempfile.TemporaryDirectory() as where:
        base = Path(where)
        monkeypatch.setenv("JUPYTER_TIMETRAVEL_STORE", str(base / "store"))
        monkeypatch.setenv("JUPYTER_TIMETRAVEL_KEYS", str(base / "keys"))

        def run(*words):
            capsys.readouterr()
            status = cli.main([str(word) for word in words])
            out, err = capsys.readouterr()
            assert status == 0, (words, out + err)
            return out

        with closing(Session(base, "beside")) as beside:
            beside.write("a", bytes([65]) * 3000)
            other = beside.checkpoint(bytes([66]) * 73_000)
        expected = {}
        session = Session(base)
        try:
            for step in steps:
                ids = [one.id for one in session.timeline]
                if step[0] == "made":
                    _, files, variables, reason, hours = step
                    for name, data in zip("ab", files):
                        session.write(name, data)
                    moment = datetime.now(timezone.utc) - timedelta(hours=hours)
                    id = session.checkpoint(*variables, reason=reason, created_at=moment)
                    expected[id] = (files, variables)
                elif step[0] == "back" and ids:
                    session.timeline.move_head(ids[step[1] % len(ids)])
                    session.store.save(session.timeline.state, [])
                elif step[0] == "deleted" and len(ids) > 1:
                    id = ids[step[1] % len(ids)]
                    if id != session.timeline.state.head:
                        gone = session.timeline.delete(id)
                        session.store.save(session.timeline.state, gone.rehung, deleted_ids=[id])
                        named = session.store.references("namespace")
                        session.namespaces.sweep(lambda named=named: named)
                elif step[0] == "pruned":
                    session.close()
                    run("prune", session.notebook, *step[1])
                    session = Session(base)
                _intact(session, expected)
        finally:
            session.close()
        run("prune")
        assert "all is well" in run("check")
        listed = json.loads(run("list", session.notebook, "--json"))["checkpoints"]
        for record in listed[:1] + listed[1:][-1:]:  # the oldest and the newest: each is slow
            if record["id"] in expected:
                run("restore", session.notebook, record["id"], "--force")
                files, _ = expected[record["id"]]
                for name, data in zip("ab", files):
                    assert (session.notebook.parent / name).read_bytes() == data
        run("restore", beside.notebook, other, "--force")
        assert (beside.notebook.parent / "a").read_bytes() == bytes([65]) * 3000


def _intact(session, expected):
    """Who was asked for is there, and each that is there has its variables, read from the disk."""
    there = {one.id: one for one in session.timeline}
    for one in there.values():
        if one.id in expected:
            ref = one.capture("namespace").ref
            units = session.namespaces.manifest(ref)["units"]
            read = [session.namespaces.get(unit["stream"][0][0]) for unit in units]
            assert tuple(read) == tuple(expected[one.id][1])
