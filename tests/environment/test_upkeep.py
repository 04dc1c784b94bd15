"""Merging and deleting of layers, under a kernel that goes on."""

from __future__ import annotations

import contextlib
import queue
from typing import Any

import pytest
from session_world import Session

from tests.waiting import until


def cells(session: Session, count: int) -> dict[int, str]:
    return {session.put(f"a{number}"): f"a{number}" for number in range(count)}


def delete(notebook: Any, number: int) -> None:
    """Delete a checkpoint. Raises queue.Empty where the kernel dies instead."""
    asked = {"version": 1, "command": "delete", "args": {"checkpoint": number}}
    message = notebook.client.session.msg("timetravel_request", asked)
    notebook.client.control_channel.send(message)
    while True:
        alive = notebook.manager.is_alive()
        try:
            reply = notebook.client.get_control_msg(timeout=0.5)
        except queue.Empty:
            if not alive:
                raise
        else:
            if reply["parent_header"]["msg_id"] == message["header"]["msg_id"]:
                return


def delete_but_the_ends(session: Session, known: dict[int, str]) -> dict[int, str]:
    numbers = sorted(known)
    for number in numbers[1:-1]:
        delete(session.notebook, number)
    return {number: known[number] for number in (numbers[0], numbers[-1])}


def wait_for_merges(session: Session, layers: set[str]) -> None:
    """Until some of these are gone. What is mounted stays until the next capture of a change, which
    may come before a merge: then there must be another one."""

    def are_merged() -> bool:
        passing = session.put("on the way")
        session.put("a9")
        delete(session.notebook, passing)
        return len(layers - session.layers()) >= 4

    until(are_merged, "layers are not merged")


def check(
    session: Session, known: dict[int, str], restore: Any = "%restore {} --only files"
) -> None:
    for number, text in known.items():
        session.notebook.run(restore.format(number))
        assert session.state() == text


def test_layers_are_merged_under_a_running_kernel(session):
    session.notebook.run("kept = open(E / 'held', 'w'); kept.write('1'); kept.flush()")
    known = cells(session, 10)
    before = session.layers()
    known = delete_but_the_ends(session, known)
    wait_for_merges(session, before)
    # all is there: in the mounts that are older than the merge too
    assert session.state() == "a9"
    session.notebook.run("kept.write('2'); kept.flush()")
    assert session.notebook.run("(E / 'held').read_text()").result == "'12'"
    check(session, known, "%restore {}")
    check(session, known)
    session.notebook.manager.shutdown_kernel()
    session.start()
    session.check_swept()
    assert session.state() == "a9"
    check(session, known)


@pytest.mark.parametrize("place", ["merged", "state half written", "synced"])
def test_killed_while_layers_are_merged(session, place):
    known = cells(session, 10)
    session.armed.write_text("merged" if place == "merged" else "")
    with contextlib.suppress(queue.Empty):
        known = delete_but_the_ends(session, known)
    if place != "merged":
        session.put("a9")
        # passed at any moment from now on, by a merge too: the cell writes nothing that is compared
        session.armed.write_text(place)
        with contextlib.suppress(queue.Empty):
            session.notebook.wait(session.notebook.send("(E / 'new').write_text('1')"), timeout=2)
    session.wait_until_gone()
    session.start()
    session.check_swept()
    assert session.state() == "a9"
    listed = session.kept()
    check(session, {number: text for number, text in known.items() if number in listed})
