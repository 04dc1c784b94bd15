"""The user's key: made once, private, and whatever it did not sign is refused."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_runtime.store.keys import Keys, KeyUnusable, NotAuthentic, NotTrusted, signer
from kernel_runtime.store.paths import key_directory

ROOT = Path(__file__).resolve().parents[2]


def test_what_was_signed_is_accepted_and_nothing_else(tmp_path):
    keys = Keys(tmp_path / "keys")
    signature = keys.sign("manifest", b"data")
    assert signer(signature) == keys.id
    Keys(tmp_path / "keys").check("manifest", b"data", signature, "The manifest")
    other = Keys(tmp_path / "other").sign("manifest", b"data")
    for purpose, data, given in [
        ("manifest", b"datb", signature),
        ("row", b"data", signature),
        ("manifest", b"data", signature[:-1] + ("0" if signature[-1] != "0" else "1")),
    ]:
        with pytest.raises(NotAuthentic, match="The manifest was altered"):
            keys.check(purpose, data, given, "The manifest")
    for given, told in [(other, signer(other)), (None, "not signed"), ("x:y", "not signed")]:
        with pytest.raises(NotTrusted, match=str(told)):
            keys.check("manifest", b"data", given, "The manifest")


def test_it_is_private_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        Keys(tmp_path / "a" / "keys").sign("p", b"")
    finally:
        os.umask(before)
    directory = tmp_path / "a" / "keys"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    [file] = directory.iterdir()  # nothing is left over
    assert (file.name, stat.S_IMODE(file.stat().st_mode)) == ("key", 0o600)
    assert len(file.read_bytes()) == 32


def test_many_that_make_it_at_once_agree(tmp_path):
    code = (
        "import sys; from pathlib import Path; from kernel_runtime.store.keys import Keys\n"
        "sys.stdin.readline(); print(Keys(Path(sys.argv[1])).id)"
    )
    several = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "keys")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for _ in range(6)
    ]
    for process in several:
        process.stdin.write("\n")
        process.stdin.flush()
    assert len({process.communicate()[0] for process in several}) == 1
    assert [file.name for file in (tmp_path / "keys").iterdir()] == ["key"]


@pytest.mark.parametrize("harm", ["short", "readable", "link", "directory"])
def test_a_key_that_is_not_one(tmp_path, harm):
    keys = Keys(tmp_path)
    keys.sign("p", b"")
    file = tmp_path / "key"
    if harm == "short":
        file.write_bytes(b"")
    elif harm == "readable":
        file.chmod(0o640)
    else:
        file.rename(tmp_path / "away")
        file.symlink_to("away") if harm == "link" else file.mkdir(0o700)
    with pytest.raises(KeyUnusable, match="Nothing was signed"):
        Keys(tmp_path).sign("p", b"")


def test_where_it_is(tmp_path, monkeypatch):
    monkeypatch.delenv("JUPYTER_TIMETRAVEL_KEYS", raising=False)
    monkeypatch.setenv("JUPYTER_TIMETRAVEL_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    assert key_directory() == tmp_path / "data" / "timetravel" / "keys"
    monkeypatch.setenv("JUPYTER_TIMETRAVEL_KEYS", str(tmp_path / "k"))
    assert key_directory() == tmp_path / "k"
