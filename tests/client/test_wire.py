"""Reading what a kernel answers, without one."""

from __future__ import annotations

import pytest

from jupyter_timetravel.commands import error_of, restore
from jupyter_timetravel.reading import read_list, read_record
from jupyter_timetravel.wire import EventReader, NoTimeTravel, check_kernel_info, read_reply
from kernel_runtime.errors import BadRequest, RestoreRefused, TimeTravelError, UnknownCheckpoint
from kernel_runtime.supervisor.restore_request import RestoreRequest

RECORD = {
    "id": "c" * 32,
    "number": 3,
    "parent": "b" * 32,
    "created_at": "2025-01-31T12:00:00.123456+00:00",
    "comment": "",
    "label": None,
    "pinned": False,
    "is_auto": True,
    "reason": "cell",
    "code": "x",
    "is_head": True,
    "coordinate": {
        "epoch": "e",
        "incarnation": 1,
        "execution_count": 3,
        "cell_id": None,
        "msg_id": None,
    },
    "captures": [],
}


def event(sequence, name="checkpoint_created", **fields):
    content = {"version": 1, "event": name, "sequence": sequence, **fields}
    return {"header": {"msg_type": "timetravel_event"}, "content": content, "parent_header": {}}


def test_errors_are_found_by_name_without_their_constructor():
    error = error_of("UnknownCheckpoint", "There is no checkpoint 99.")
    assert type(error) is UnknownCheckpoint and str(error) == "There is no checkpoint 99."
    with pytest.raises(RestoreRefused, match="busy"):
        read_reply({"status": "error", "ename": "RestoreRefused", "evalue": "busy"})
    unknown = error_of("SomethingNewer", "why")
    assert type(unknown) is TimeTravelError and str(unknown) == "SomethingNewer: why"


def test_the_version_is_checked():
    check_kernel_info({"timetravel": {"version": 1}})
    with pytest.raises(NoTimeTravel, match="has no time travel"):
        check_kernel_info({"implementation": "ipython"})
    with pytest.raises(NoTimeTravel, match="version 2"):
        check_kernel_info({"timetravel": {"version": 2}})


def test_missed_events_are_counted():
    reader = EventReader(lambda id: ("h",))
    assert reader.read({"header": {"msg_type": "stream"}, "content": {}}) is None
    assert [reader.read(event(n)).missed for n in (5, 6, 9, 10)] == [0, 0, 2, 0]


def test_the_history_of_an_event_is_asked_for_when_it_is_wanted():
    asked = []

    def history_of(id):
        asked.append(id)
        return ("a", "b")

    record = EventReader(history_of).read(event(1, checkpoint=RECORD)).checkpoint
    assert asked == []
    assert record.history == ("a", "b") and asked == [RECORD["id"]]
    short = event(2, "restore_progress", checkpoint={"id": "x", "number": 1}, step="plan")
    assert EventReader(history_of).read(short).checkpoint is None


def test_histories_of_a_list_follow_from_its_parents():
    ids = ["a" * 32, "b" * 32, "c" * 32]
    parents = {ids[0]: None, ids[1]: ids[0], ids[2]: ids[1]}
    (record,) = read_list({"checkpoints": [RECORD], "parents": parents, "head": ids[2]})
    assert record.history == tuple(ids[:2])
    assert read_record({**RECORD, "history": ids[:1]}).history == (ids[0],)
    assert read_record(RECORD).history == ()
    with pytest.raises(BadRequest):
        read_record({"id": "x"})


def test_a_command_is_a_request_of_the_protocol():
    content = restore(RestoreRequest("x", only="files")).content
    assert content == {
        "version": 1,
        "command": "restore",
        "args": {"checkpoint": "x", "only": "files"},
    }
