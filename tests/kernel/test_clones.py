"""Case remote-04: one checkpoint restored several times; what must differ differs, and on request
seeded generators too."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.kernel.durable_world import durable, kill

SEED = """\
import random, ssl, tempfile, uuid, secrets, numpy as np
random.seed(1); np.random.seed(1); rng = np.random.default_rng(5)
mine = random.Random(7); old = np.random.RandomState(9); kept = {'deep': [np.random.default_rng(3)]}
_ = ssl.RAND_bytes(4), next(tempfile._get_candidate_names()), random.random()
"""
UNIQUE = (
    "import json; print(json.dumps([ssl.RAND_bytes(16).hex(), "
    "next(tempfile._get_candidate_names()), uuid.uuid4().hex, secrets.token_hex(8)]))"
)
DRAWN = (
    "import json; print(json.dumps([random.random(), float(np.random.rand()), float(rng.random()), "
    "mine.random(), float(old.rand()), float(kept['deep'][0].random())]))"
)


def drawn(notebook: Any, code: str) -> list[Any]:
    """What a cell drew."""
    found: list[Any] = json.loads(notebook.run(code).out)
    return found


def differ(*lists: list[Any]) -> bool:
    """Whether no two have anything in common."""
    values = [value for one in lists for value in one]
    return len(set(values)) == len(values)


def test_remote_04_by_the_frozen_process(notebook: Any) -> None:
    notebook.run(SEED)
    unique, seeded = drawn(notebook, UNIQUE), drawn(notebook, DRAWN)
    notebook.run("%restore 1")
    assert differ(unique, drawn(notebook, UNIQUE))
    assert drawn(notebook, DRAWN) == seeded
    first = notebook.run("%restore 1 --reseed").out
    assert "seeded anew: random (2), numpy.random (4)" in first, first
    other = drawn(notebook, DRAWN)
    notebook.run("%restore 1 --reseed")
    assert differ(seeded, other, drawn(notebook, DRAWN))
    assert notebook.run("%restore 1 --only files --reseed", ok=False).status == "error"
    notebook.run("%restore 1")
    assert drawn(notebook, DRAWN) == seeded


@pytest.mark.parametrize("images", [False, True], ids=["variables", "image"])
def test_remote_04_by_what_is_on_the_disk(
    start_notebook: Callable[..., Any], document: dict[str, Any], images: bool
) -> None:
    settings = f"--Supervisor.images={images}"
    first = start_notebook(settings, **document)
    first.run(SEED)
    first.run("%checkpoint --label seeded")
    number = first.head()["number"]
    assert durable(first, number)["state"] == "ready"
    seeded = drawn(first, DRAWN)
    kill(first)
    second = start_notebook(settings, **document)
    assert "seeded anew" in second.run("%timetravel resume --reseed").out
    resumed = drawn(second, DRAWN)
    second.run("%restore seeded")
    assert drawn(second, DRAWN) == seeded
    assert "seeded anew" in second.run("%restore seeded --reseed").out
    assert differ(seeded, resumed, drawn(second, DRAWN))
