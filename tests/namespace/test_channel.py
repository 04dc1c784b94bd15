"""What the supervisor makes of a copy that ends, or says nothing any more, while it pickles."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kernel_runtime import blob_channel
from kernel_runtime.blob_channel import ChannelError
from kernel_runtime.engines.dill import engine
from kernel_runtime.engines.dill.engine import DillEngine, PicklingEnded
from kernel_runtime.store.keys import Keys
from kernel_runtime.store.namespaces import NamespaceStore


@pytest.fixture
def dill(tmp_path: Path) -> DillEngine:
    return DillEngine(NamespaceStore(tmp_path / "store", Keys(tmp_path / "keys")))


def test_what_was_pickled_last_is_told(dill: DillEngine) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        blob_channel.say(theirs, trying=["fine"])
        blob_channel.say(theirs, trying=["bad", "shares with it"])
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(PicklingEnded) as told:
            dill.take_in(ours, 0.0, {})
    assert told.value.names == ("bad", "shares with it")
    assert told.value.reason == "pickling it ends the process (it has ended)"


def test_what_takes_too_long_is_told(dill: DillEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_SILENCE_S", 0.5)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        blob_channel.say(theirs, trying=["slow"])
        with pytest.raises(PicklingEnded) as told:
            dill.take_in(ours, 0.0, {})
    assert told.value.names == ("slow",)
    assert told.value.reason.startswith("pickling it takes more than")


def test_one_that_ends_before_it_pickles_blames_nothing(dill: DillEngine) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        with pytest.raises(ChannelError) as told:
            dill.take_in(ours, 0.0, {})
    assert not isinstance(told.value, PicklingEnded)


def asked_of(dill: DillEngine, older: Any) -> dict[str, Any]:
    """What a copy is asked that has an empty manifest to say."""

    def answer() -> dict[str, Any]:
        client = blob_channel.BlobClient(theirs)
        request = client.hear()
        client.say(done=True, manifest={"units": []})
        return request

    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as thread:
        answered = thread.submit(answer)
        assert dill.take_in(ours, 0.0, {}, older) == {"units": []}
        return answered.result()


def test_what_many_variables_share_is_told_once(dill: DillEngine) -> None:
    """Or it would be too long to be said."""
    buffers = [[[f"{number:064x}", 70_000]] for number in range(1000)]
    names = [f"a{number}" for number in range(1000)]
    older = {"units": [{"kind": "variables", "names": names, "buffers": buffers}]}
    asked = asked_of(dill, older)
    assert len(json.dumps(asked)) < 2 * len(json.dumps(older))
    assert asked["older"] == [[names, [[name for name, _ in one] for one in buffers]]]


@pytest.mark.parametrize(
    "unit", [{}, [], None, {"kind": "variables", "names": 1, "buffers": [[1]]}], ids=str
)
def test_an_older_manifest_that_is_made_up_costs_no_dump(dill: DillEngine, unit: Any) -> None:
    assert asked_of(dill, {"units": [unit]})["older"] == []


@pytest.mark.parametrize(
    "units",
    [
        [{"stream": [["../../x", 1]], "buffers": []}],
        [{"stream": [], "buffers": [[["0" * 63, 1]]]}],
        [{"stream": []}],
        [None],
        7,
    ],
    ids=str,
)
def test_a_manifest_that_is_made_up_is_not_kept(dill: DillEngine, units: Any) -> None:
    """One whose list nobody can read would keep every sweep from happening."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        blob_channel.say(theirs, done=True, manifest={"version": 1, "units": units})
        with pytest.raises(ChannelError, match="cannot be used"):
            dill.take_in(ours, 0.0, {})
