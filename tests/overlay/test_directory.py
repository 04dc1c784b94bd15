"""The directory of an environment, and its state file."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_runtime.engines.overlay import directory as module
from kernel_runtime.engines.overlay.directory import EnvironmentDirectory, State
from kernel_runtime.errors import EnvironmentRefused
from kernel_runtime.linux import boot_id

IDS = st.text("0123456789abcdef", min_size=10, max_size=10)
STATES = st.builds(
    State,
    boot=st.text(max_size=5),
    running=st.booleans(),
    stacks=st.dictionaries(st.sampled_from(["/usr", "/home"]), st.lists(IDS, max_size=3)),
    uppers=st.dictionaries(st.sampled_from(["/usr", "/home"]), IDS),
    root_layer=st.one_of(st.just(""), IDS),
    merged=st.dictionaries(IDS, st.lists(IDS, max_size=3)),
    synced=st.lists(IDS, max_size=3),
    since_ns=st.integers(0, 1 << 62),
)


@pytest.fixture
def made(tmp_path: Path) -> EnvironmentDirectory:
    directory = EnvironmentDirectory(tmp_path / "environments" / "x")
    directory.make()
    return directory


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(state=STATES, durable=st.booleans())
def test_what_is_written_is_read(made, state, durable):
    made.write(state, durable=durable)
    assert made.read() == state
    assert {*os.listdir(made.path)} - {"reserve", "state.synced.json"} == {"layers", "state.json"}


def test_a_new_one(made):
    assert made.read() == State() and made.all_layers() == []
    assert os.stat(made.path).st_mode & 0o777 == 0o700
    assert os.stat(made.layers).st_mode & 0o777 == 0o700
    assert State().names() == set()


def test_names():
    state = State(stacks={"/a": ["x", "y"], "/b": []}, uppers={"/a": "z"}, root_layer="r")
    assert state.names() == {"x", "y", "z", "r"}


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "null", "[]", "7", '"x"', '{"version": 2}', "{}", "\x00\x00",
        '{"version": 1, "stacks": []}', '{"version": 1, "stacks": {"/x": "abc"}}',
        '{"version": 1, "stacks": {"/x": ["../../../etc"]}}',
        '{"version": 1, "stacks": {"/x": ["a:b"]}}', '{"version": 1, "uppers": {"/x": ["a"]}}',
        '{"version": 1, "uppers": {"/x": ""}}', '{"version": 1, "merged": ["a"]}',
        '{"version": 1, "synced": "a"}', '{"version": 1, "root_layer": "a/b"}',
        '{"version": 1, "since_ns": "1"}',
    ],
)  # fmt: skip
def test_a_damaged_state_is_refused_and_left_alone(made, text):
    path = made.path / "state.json"
    path.write_text(text)
    with pytest.raises(EnvironmentRefused, match=str(made.path)):
        made.read()
    assert path.read_text() == text


def test_a_damaged_state_with_any_end(made):
    state = State(stacks={"/usr": ["a1", "b2"]}, uppers={"/usr": "c3"})
    text = json.dumps(asdict(state))
    for length in range(len(text)):
        (made.path / "state.json").write_text(text[:length])
        with pytest.raises(EnvironmentRefused):
            made.read()


def test_a_state_that_did_not_get_to_the_disk(made):
    """After a power cut it is the one that was synced last; else a damaged one is refused."""
    newest = made.path / "state.json"

    def found(text):
        newest.unlink()
        newest.write_text(text)
        return made.read().uppers["/usr"]

    state = State(boot="another", running=True, uppers={"/usr": "a1"})
    made.write(state, durable=True)
    older = newest.read_text()
    state.uppers = {"/usr": "b2"}
    made.write(state)
    assert made.read().uppers["/usr"] == "b2"
    assert found("") == found("{") == found(older) == "a1"
    # of two that are whole the newer one
    state.uppers = {"/usr": "b2"}
    made.write(state, durable=True)
    assert found(older) == "b2"
    # the machine has not gone down since: it was damaged by something else
    state.boot = boot_id()
    made.write(state, durable=True)
    with pytest.raises(EnvironmentRefused):
        found("")


def test_what_a_later_version_adds_is_skipped(made):
    state = State(uppers={"/usr": "c3"})
    (made.path / "state.json").write_text(json.dumps({**asdict(state), "more": [1]}))
    assert made.read() == state


def test_a_state_that_cannot_be_opened(made):
    (made.path / "state.json").mkdir()
    with pytest.raises(EnvironmentRefused):
        made.read()


def test_a_write_that_fails_leaves_the_old_state(made, monkeypatch):
    old = State(uppers={"/usr": "a1"})
    made.write(old)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(module.json, "dump", full)
    with pytest.raises(OSError, match="full"):
        made.write(State(uppers={"/usr": "b2"}))
    monkeypatch.undo()
    assert made.read() == old


def test_what_is_held_back_is_given_up_piece_by_piece(made, monkeypatch):
    if made._held_back() == 0:
        pytest.skip("missing ability: room on the disk")
    made.make_room()
    assert made._held_back() == module.RESERVE
    monkeypatch.setattr(made, "_free", lambda: 0)
    for left in (3, 2, 1, 0, 0):
        made.make_room()
        assert made._held_back() == left << 20
    made.keep_room()
    assert made._held_back() == 0
    monkeypatch.undo()
    made.keep_room()
    assert made._held_back() == module.RESERVE


def layer(made: EnvironmentDirectory, name: str) -> Path:
    (made.layers / name / "files").mkdir(parents=True)
    (made.layers / name / "work" / "work").mkdir(parents=True)
    return made.files(name)


def test_layers(made):
    files = layer(made, "a1")
    assert made.exists("a1") and not made.exists("b2")
    assert made.is_empty("a1") and made.is_empty("b2")
    (files / ".hidden").touch()
    assert not made.is_empty("a1")
    (made.layers / "c3").mkdir()
    assert made.all_layers() == ["a1", "c3"] and not made.exists("c3")


def test_layers_that_forbid_it_are_removed(made):
    files = layer(made, "a1")
    (files / "closed" / "deep").mkdir(parents=True)
    (files / "closed" / "deep" / "f").touch()
    os.symlink("/", files / "link")
    for path in (files / "closed" / "deep", files / "closed", files):
        os.chmod(path, 0)
    os.chmod(made.layers / "a1" / "work" / "work", 0)
    layer(made, "b2")
    made.remove_layers(["a1", "nowhere"])
    assert made.all_layers() == ["b2"]
    made.remove()
    assert not made.path.exists()
    made.remove()


def test_boot_id():
    assert len(boot_id()) == 36 and boot_id() == boot_id()
