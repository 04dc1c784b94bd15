"""Whether the host's files have changed beneath the layers."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from layers import GONE, Made

from kernel_runtime.engines.overlay import hostchanges
from kernel_runtime.engines.overlay.hostchanges import host_changes


@pytest.fixture(autouse=True)
def no_books(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine's package manager does meanwhile."""
    monkeypatch.setattr(hostchanges, "_BOOKS", ())


@pytest.fixture
def base(made: Made) -> Path:
    """With a layer that touches d, d/sub and the top."""
    base = made.base({"d": {"a": "1", "b": "1", "sub": {"x": "1"}}, "other": {"y": "1"}, "f": "1"})
    made.layer({"d": {"a": "mine", "sub": {"x": GONE}}})
    time.sleep(0.03)
    return base


def look(made: Made, since_ns: int, **options: object) -> list[str]:
    root = str(made.top / "base")
    return host_changes({root: made.stack()}, since_ns, **options)  # type: ignore[arg-type]


def later() -> int:
    now = time.time_ns()
    time.sleep(0.05)
    return now


def test_nothing_has_changed(made, base):
    assert look(made, later()) == []


def test_files_beside_and_below_what_the_layers_hold(made, base):
    since = later()
    (base / "d/a").write_text("2")  # hidden by the layer, and told all the same
    (base / "d/b").write_text("2")
    (base / "d/sub/x").write_text("2")
    assert sorted(look(made, since)) == [str(base / p) for p in ("d/a", "d/b", "d/sub/x")]


def test_what_is_made_and_deleted(made, base):
    since = later()
    (base / "d/new").touch()
    os.unlink(base / "d/b")
    assert sorted(look(made, since)) == [str(base / "d"), str(base / "d/new")]


def test_a_change_that_is_set_back_in_time(made, base):
    since = later()
    (base / "d/b").write_text("2")
    os.utime(base / "d/b", (1, 1))
    assert look(made, since) == [str(base / "d/b")]


def test_where_no_layer_is_nothing_is_looked_at(made, base):
    since = later()
    (base / "other/y").write_text("2")
    assert look(made, since) == []


def test_noise(made, base):
    since = later()
    (base / "d/__pycache__").mkdir()
    changed = look(made, since)
    assert str(base / "d/__pycache__") not in changed


def test_the_books_of_package_managers(made, base, monkeypatch, tmp_path):
    status = tmp_path / "status"
    status.touch()
    packages = tmp_path / "venv/lib/python3.12/site-packages"
    packages.mkdir(parents=True)
    monkeypatch.setattr(hostchanges, "_BOOKS", (str(status), str(tmp_path / "no")))
    since = later()
    assert look(made, since, prefixes=[str(tmp_path / "venv")]) == []
    status.write_text("x")
    (packages / "numpy").mkdir()
    changed = look(made, since, prefixes=[str(tmp_path / "venv")])
    assert changed == [str(status), str(packages / "numpy"), str(packages)]


def test_a_directory_that_is_gone(made, base):
    os.rename(base / "d", base / "e")
    assert str(base / "d") not in look(made, later())


def test_as_many_as_are_wanted(made, base):
    since = later()
    for number in range(hostchanges.MOST + 20):
        (base / f"d/n{number}").touch()
    assert len(look(made, since)) == hostchanges.MOST


def test_not_for_longer_than_a_second(made, monkeypatch):
    made.base({f"d{n}": {"f": "1"} for n in range(200)})
    made.layer({f"d{n}": {"g": "1"} for n in range(200)})
    monkeypatch.setattr(hostchanges, "_SECONDS", 0.0)
    assert look(made, 0) == []


def test_where_ipython_keeps_its_history_is_no_change(made, base, monkeypatch):
    """Wherever that is: the supervisor writes there with each cell."""
    monkeypatch.setenv("IPYTHONDIR", str(base / "d"))
    since = later()
    (base / "d/b").write_text("2")
    (base / "d/sub/x").write_text("2")
    (base / "f").write_text("2")
    assert look(made, since) == [str(base / "f")]
