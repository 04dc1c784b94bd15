"""Case remote-02: variables that another minor version of Python has written. There is one Python
here, so a namespace is signed anew that says it came from another one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernel_runtime.store.database import open_store
from kernel_runtime.store.keys import Keys
from kernel_runtime.store.namespaces import NamespaceStore
from tests.kernel.durable_world import durable, kill
from tests.namespace.namespace_harness import REMOTE_02

PLAIN = """
class Plain:
    k = 4
table = {"fn": f}; plain = Plain()
"""


def as_if_from(store: Path, keys: Keys, python: str) -> None:
    """The newest namespace of the only timeline says that this version has written it."""
    namespaces = NamespaceStore(store, keys)
    with contextlib.closing(open_store(store, keys)) as database, namespaces.writing():
        (info,) = database.timelines()
        timeline = database.look_at(info.id)
        checkpoint = next(c for c in timeline if c.label == "here")
        capture = checkpoint.capture("namespace")
        assert capture is not None and capture.ref is not None
        manifest = namespaces.manifest(capture.ref)
        ref = namespaces.save_manifest({**manifest, "python": python})
        namespaces.flush()
        changed = timeline.set_capture(checkpoint.id, replace(capture, ref=ref))
        database.save(timeline.state, [changed])


def test_remote_02_nothing_of_another_minor_version_is_unpickled(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    env = {**document["env"], "JUPYTER_TIMETRAVEL_KEYS": str(keys)}
    settings = ("--Supervisor.images=False",)
    first = start_notebook(*settings, cwd=document["cwd"], env=env)
    first.run(REMOTE_02 + PLAIN)
    first.run("%checkpoint --label here")
    assert durable(first, first.head()["number"])["state"] == "ready"
    kill(first)

    as_if_from(tmp_path / "store", Keys(keys), "3.9.2")
    second = start_notebook(*settings, cwd=document["cwd"], env=env)
    told = second.run("%restore here").out
    assert "compiled by Python 3.9 and this is Python 3." in told
    assert "a kernel of Python 3.9 loads it" in told
    for name in ("f", "P", "p", "g", "table"):
        assert f"not brought back: {name}: " in told, told
        assert second.run(name, ok=False).error.startswith("NameError")
    assert second.run("print(data, Plain.k, plain.k)").out == "{'x': [1, 2, 3]} 4 4"
    kill(second)

    import platform

    same = ".".join(platform.python_version_tuple()[:2]) + ".99"
    as_if_from(tmp_path / "store", Keys(keys), same)
    third = start_notebook(*settings, cwd=document["cwd"], env=env)
    assert "compiled by" not in third.run("%restore here").out
    assert third.run("print(data, f(4), p.go(), g(1))").out == "{'x': [1, 2, 3]} 6 3 2"
