"""What could not be loaded goes as it is stored from one manifest into the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jupyter_timetravel.redaction.needle import Needle
from jupyter_timetravel.redaction.variables import look, rewrite
from kernel_runtime.engines.dill.carrying import (
    Unloaded,
    carried_in,
    carry,
    may_be_missing,
    unloaded,
)
from kernel_runtime.engines.dill.engine import Loaded
from kernel_runtime.store.keys import Keys
from kernel_runtime.store.namespaces import NamespaceStore
from tests.namespace.namespace_harness import Came, Dumped, dump, load

PATH = "import sys; sys.path.append({!r})"
MADE = "import gone; q = gone.Q(); q.n = 7; both = {'q': q}; other = [1, q]; z = 100"


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """The module ``gone``."""
    (tmp_path / "packages").mkdir()
    made = tmp_path / "packages" / "gone.py"
    made.write_text("class Q:\n    pass\n")
    return made


def took(came: Came, dumped: Dumped) -> Unloaded:
    lost = [[name, why] for name, why in came.lost.items()]
    found = unloaded(dumped.manifest, Loaded(came.names, lost))
    assert found is not None
    return found


def with_manifest(dumped: Dumped, manifest: dict[str, Any]) -> Dumped:
    return Dumped(manifest, 0, [], dumped.environment)


def test_there_and_back(tmp_path: Path, module: Path) -> None:
    path = PATH.format(str(module.parent))
    first = dump(tmp_path, path, MADE)
    module.rename(tmp_path / "kept")
    came = load(tmp_path, first, "print(z, 'q' in dir())")
    assert came.printed == ["100 False\n"] and set(came.lost) == {"gone", "q", "both", "other"}
    second = dump(tmp_path, path, "z = 100; both = 'mine'")
    carried = with_manifest(second, carry(second.manifest, took(came, first)))
    assert may_be_missing(carried.manifest) == {"gone", "q", "other"}
    came = load(tmp_path, carried, "print(z, both, 'q' in dir())")
    assert came.printed == ["100 mine False\n"]
    assert set(came.lost) == {"gone", "q", "other"}
    # and once more: from a manifest that only carries
    third = dump(tmp_path, path, "z = 3")
    held = took(came, carried)
    assert held.reasons.keys() == dict(carried.manifest["carried"]).keys()
    again = with_manifest(third, carry(third.manifest, held))
    (tmp_path / "kept").rename(module)
    came = load(tmp_path, again, "print(z, q.n, other[1] is q, type(q) is gone.Q, 'both' in dir())")
    assert came.printed == ["3 7 True True False\n"] and not came.lost


def test_what_is_made_of_a_class_is_of_the_one_that_is_there(tmp_path: Path, module: Path) -> None:
    path = PATH.format(str(module.parent))
    of_both = (
        "import gone\nclass K:\n    v = 1\nk = K(); k.part = gone.Q()\nclass L(K): pass\nl = L()"
    )
    first = dump(tmp_path, path, of_both)
    module.rename(tmp_path / "kept")
    came = load(tmp_path, first, "print(K.v, 'k' in dir())")
    assert came.printed == ["1 False\n"] and "K" not in came.lost
    second = dump(tmp_path, path, "class K:\n    v = 2\nnew = K()")
    manifest = carry(second.manifest, took(came, first))
    (tmp_path / "kept").rename(module)
    came = load(tmp_path, with_manifest(second, manifest), "print(k.v, type(k) is K is type(new))")
    assert came.printed == ["2 True\n"] and not came.lost


def test_a_class_that_went_comes_along(tmp_path: Path, module: Path) -> None:
    path = PATH.format(str(module.parent))
    first = dump(tmp_path, path, "import gone\nclass K:\n    v = 1\nk = K(); k.part = gone.Q()")
    module.rename(tmp_path / "kept")
    came = load(tmp_path, first)
    second = dump(tmp_path, path, "z = 1")  # K was deleted there
    manifest = carry(second.manifest, took(came, first))
    (tmp_path / "kept").rename(module)
    came = load(tmp_path, with_manifest(second, manifest), "print(k.v, 'K' in dir())")
    assert came.printed == ["1 False\n"] and not came.lost


def test_code_of_another_python_stays_unread_until_its_own_reads_it(tmp_path: Path) -> None:
    first = dump(
        tmp_path,
        "def f():\n    return 4\nclass P:\n    def go(self):\n        return f()\np = P(); x = 1",
    )
    theirs = first.manifest["python"]
    first.manifest["python"] = "2.7.1"
    came = load(tmp_path, first, "print(x)")
    assert came.printed == ["1\n"] and "compiled by Python 2.7" in came.lost["f"]
    second = dump(tmp_path, "x = 2")
    held = took(came, first)
    manifest = carry(second.manifest, held)
    assert {unit["python"] for unit in manifest["units"] if "python" in unit} == {"2.7.1"}
    came = load(tmp_path, with_manifest(second, manifest), "print(x, 'f' in dir())")
    assert came.printed == ["2 False\n"] and "compiled by Python 2.7" in came.lost["f"]
    # the one that wrote it reads it, though the manifest is another's
    first.manifest["python"] = theirs
    manifest = carry({**second.manifest, "python": "2.7.1"}, held)
    came = load(tmp_path, with_manifest(second, manifest), "print(p.go(), type(p) is P)")
    assert came.printed == ["4 True\n"]


def test_what_the_store_has_not_any_more_is_lost_with_that_reason(
    tmp_path: Path, module: Path
) -> None:
    path = PATH.format(str(module.parent))
    first = dump(tmp_path, path, "import gone; a = gone.Q(); b = gone.Q(); b.n = 5")
    module.rename(tmp_path / "kept")
    held = took(load(tmp_path, first), first)
    only = Unloaded(held.manifest, {"a": ""}).digests()
    manifest = carry(dump(tmp_path, "z = 1").manifest, held, only)
    assert set(dict(manifest["carried"])) == {"gone", "b"}
    assert "not in the store any more" in dict(manifest["lost"])["a"]


def test_what_is_carried_can_be_redacted(tmp_path: Path, module: Path) -> None:
    path = PATH.format(str(module.parent))
    first = dump(tmp_path, path, "import gone; a = gone.Q(); a.key = 'hunter22'; b = gone.Q()")
    module.rename(tmp_path / "kept")
    held = took(load(tmp_path, first), first)
    manifest = carry(dump(tmp_path, "z = 1").manifest, held)
    store = NamespaceStore(tmp_path / "store", Keys(tmp_path / "keys"))
    with store.writing():
        for digest in NamespaceStore._names_in(manifest):
            store.put(digest, (tmp_path / digest).read_bytes())
        needle = Needle(texts=("hunter22",))
        clean = rewrite(store, manifest, look(store, manifest, needle), needle)
        assert not look(store, clean, needle)
    left = carried_in(clean)
    assert left is not None and set(left.reasons) == {"gone", "b"}
