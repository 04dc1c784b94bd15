"""What a restore may be asked for, and what is refused before anything is done."""

from __future__ import annotations

from typing import Any

import pytest

from kernel_runtime.errors import BadRequest
from kernel_runtime.supervisor.restore_request import RestoreRequest


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"checkpoint": "before", "only": "files", "partial": True},
        {"checkpoint": 3, "paths": ["a", "b"], "keep_notebooks": True, "lease": "l"},
        {"paths": []},
        {"undo": True, "force": True, "compensate": True, "reseed": True, "dry_run": True},
    ],
)
def test_what_was_read_is_said_again(args: dict[str, Any]) -> None:
    assert RestoreRequest.read(args).args() == args


def test_what_is_as_if_not_given_is_left_out() -> None:
    args = {"checkpoint": -1, "only": None, "reseed": False, "paths": None}
    assert RestoreRequest.read(args) == RestoreRequest()
    assert RestoreRequest.read(args).args() == {}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"checkpoints": 1}, "no argument 'checkpoints'; it has checkpoint, "),
        ({"checkpoint": True}, "checkpoint must be int or str"),
        ({"checkpoint": None}, "checkpoint must be"),
        ({"only": "memory"}, "only can be process or files, not 'memory'"),
        ({"dry_run": 1}, "dry_run must be bool"),
        ({"paths": "a"}, "paths must be list or null"),
        ({"paths": ["a", 1]}, "paths must be a list of texts"),
        ({"lease": 1}, "lease must be str or null"),
        ({"only": "files", "reseed": True}, "files alone have no generators"),
        ({"only": "files", "compensate": True}, "files alone take no cell back"),
    ],
)
def test_what_is_wrong_is_named(args: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest, match=r"Nothing was done\.$") as caught:
        RestoreRequest.read(args)
    assert said in str(caught.value)
