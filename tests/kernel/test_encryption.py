"""A session in an encrypted store: nothing of it is told, it outlives its kernel all the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from tests.exchange.conftest import call
from tests.kernel.durable_world import durable, image, kill

sys.path.insert(0, str(ROOT / "tests" / "store"))
from plain_finder import found_in

SECRET = "TTSECRET-" + "4f9a1c" * 4
CELL = "import os; tok = 'TTSECRET-' + '4f9a1c' * 4; open('.env', 'w').write('K=' + tok * 90)"
LINE = "marked = 'TTLINE-e7b1'; it = iter([1, 2, 3]); held = (n * n for n in it); _ = next(held)"


def test_a_session_is_sealed_and_comes_back(
    start_notebook: Callable[..., Any], tmp_path: Path
) -> None:
    work, store, key = tmp_path / "work", tmp_path / "store", tmp_path / "private" / "store.key"
    work.mkdir()
    key.parent.mkdir(mode=0o700)
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    (work / "n.ipynb").write_text("{}")
    env = {
        "JPY_SESSION_NAME": str(work / "n.ipynb"),
        "JUPYTER_TIMETRAVEL_ENCRYPTION": str(key),
    }

    first = start_notebook(cwd=work, env=env)
    told = first.run(CELL).text("stderr")
    covered = bool(first.command("status")["environment"]["covered"])
    assert ("their layers" in told) == covered
    first.run(LINE)
    first.run("%checkpoint --label sealed a comment of TTLINE-e7b1")
    record = durable(first, 3)
    assert record["state"] == "ready", record
    assert image(first, 3)["state"] == "ready", image(first, 3)
    if covered:
        hidden = f"k = {str(key)!r}; print(os.path.exists(k) and bool(open(k, 'rb').read()))"
        assert first.run(hidden).out == "False"
        assert (
            first.run(f"print(os.path.exists({str(store / 'timelines.sqlite')!r}))").out == "False"
        )
    first.run("tok = None; os.remove('.env')")
    kill(first)
    assert [f for f in found_in(store, SECRET.encode(), b"TTLINE") if "environments" not in f] == []

    second = start_notebook(cwd=work, env=env)
    text = second.run("%restore sealed").out
    assert "restored #3" in text and "a fresh one" not in text, text
    assert second.run("next(held)").result == "4"  # the process itself
    assert second.run("print(tok[:9], marked, len(open('.env').read()))").out == (
        f"TTSECRET- TTLINE-e7b1 {2 + 33 * 90}"
    )
    kill(second)

    offline = {"store": store, "JUPYTER_TIMETRAVEL_ENCRYPTION": str(key)}
    assert "#3" in call("verify", work / "n.ipynb", "sealed", **offline)
    call("restore", work / "n.ipynb", "sealed", **offline)
    assert (work / ".env").exists()
    call("restore", work / "n.ipynb", "0", **offline)
    assert not (work / ".env").exists()

    key.write_bytes(os.urandom(32))
    before = {f: f.read_bytes() for f in store.rglob("*") if f.is_file() and "/sealed/" in str(f)}
    third = start_notebook(cwd=work, env=env)
    told = third.run("x = 1").text("stderr")
    assert str(key) in told and "does not open it" in told and "Nothing was read" in told
    third.run("%checkpoint --label here")
    third.run("x = 2")
    assert "restored" in third.run("%restore here").out
    assert third.run("print(x)").out == "1"
    assert before == {f: f.read_bytes() for f in before}
