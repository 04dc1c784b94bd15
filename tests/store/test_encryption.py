"""An encrypted store: what it tells without its key, and that it works with it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from plain_finder import found_in
from store_world import Session, leave_store

from jupyter_timetravel import cli
from kernel_runtime.engines.workspace.engine import WorkspaceEngine
from kernel_runtime.store import encryption
from kernel_runtime.store.blobs import BlobDamaged, BlobNotStored, BlobStore
from kernel_runtime.store.cipher import Altered, Cipher
from kernel_runtime.store.database import open_store
from kernel_runtime.store.database_file import FILE_NAME
from kernel_runtime.store.digests import digest_of
from kernel_runtime.store.encryption import EncryptionLocked, EncryptionRefused, Secret
from kernel_runtime.store.errors import DatabaseDamaged, StoreError
from kernel_runtime.store.keys import Keys
from kernel_runtime.timeline.cells import Cell, Effect
from kernel_runtime.timeline.model import Capture, Note

MAIN = "import sys; from jupyter_timetravel.cli import main; sys.exit(main())"
SECRET = "TTSECRET-4f9a1c"
CONTENT = f"K={SECRET}\n" * 9000  # more than one chunk
VARIABLE = f"pickled {SECRET}".encode() * 50
NOTE = Capture(
    "process", "fork", "failed", 0, None, SECRET, (Note("variable", SECRET, SECRET),), {"x": SECRET}
)


@pytest.fixture(autouse=True)
def key(tmp_path, monkeypatch):
    """A key file, which the environment names; no store is open in this process."""
    file = tmp_path / "store.key"
    file.write_bytes(os.urandom(32))
    file.chmod(0o600)
    monkeypatch.setenv("JUPYTER_TIMETRAVEL_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("JUPYTER_TIMETRAVEL_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv(encryption.VARIABLE, str(file))
    forget()
    yield file
    forget()


def forget():
    """As a process that has just been started."""
    encryption._unlocked.clear()
    encryption._named.clear()


@pytest.fixture
def command(capsys):
    def run(*words, status=0):
        capsys.readouterr()
        found = cli.main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert found == status, out + err
        return out or err

    return run


def secret_session(base, name="n"):
    """Two checkpoints of one notebook, which have a secret wherever one can be; closed."""
    session = Session(base, name)
    with closing(session):
        session.write("same.txt", CONTENT)
        effect = Effect("file", SECRET, 1, 0.0)
        ran = Cell(
            "c",
            SECRET,
            None,
            1,
            "ok",
            None,
            0.0,
            0.0,
            result=SECRET,
            effects=(effect,),
            output=SECRET,
        )
        more = {
            "label": SECRET,
            "code": SECRET,
            "variables": {SECRET: {"text": SECRET}},
            "cells": (ran,),
        }
        session.checkpoint(VARIABLE, comment=f"one {SECRET}", **more)
        session.write("changes.txt", f"{SECRET} two")
        session.checkpoint(VARIABLE, f"{SECRET} 2".encode(), comment=f"two {SECRET}")
        session.timeline.set_capture(session.timeline.resolve(1).id, NOTE)
        session.store.save(session.timeline.state, [session.timeline.resolve(1)])
    return session


def told(store):
    """Whatever shows the secret, or lets somebody who guesses it see that the guess is right."""
    digests = [
        digest_of(VARIABLE),
        digest_of(CONTENT[:65_536].encode()),
        digest_of(CONTENT.encode()),
    ]
    return found_in(store, SECRET.encode(), *(digest.encode() for digest in digests))


def contents(store):
    return {
        str(file.relative_to(store)): file.read_bytes()
        for file in sorted(store.rglob("*"))
        if file.is_file() and not file.name.endswith(("-wal", "-shm"))
    }


def turned_on(tmp_path, key):
    encryption.at_start(tmp_path / "store", str(key))


def test_nothing_is_told_without_the_key(tmp_path, key, command):
    (tmp_path / "plain").mkdir()
    plain = secret_session(tmp_path / "plain")
    assert len(told(plain.directory)) >= 4  # the search finds what is there
    turned_on(tmp_path, key)
    session = secret_session(tmp_path)
    assert told(session.directory) == []
    assert list(session.directory.glob("sealed/*/*")) and not list(
        session.directory.glob("blobs/*/*")
    )
    modes = {f.stat().st_mode & 0o777 for f in session.directory.rglob("*") if f.is_file()}
    assert modes == {0o600}
    assert f"two {SECRET}" in command("list", session.notebook)
    assert SECRET in command("show", session.notebook, "1")
    with closing(open_store(session.directory)) as store:
        (info,) = store.timelines()
        first = store.look_at(info.id).resolve(1)
        assert (first.label, first.code, first.cells[0].source) == (SECRET, SECRET, SECRET)
        assert first.variables[SECRET]["text"] == SECRET
        assert NOTE in first.captures


def test_all_commands_work_with_the_key(tmp_path, key, command):
    turned_on(tmp_path, key)
    session = secret_session(tmp_path)
    assert "2 checkpoints read: all is well" in command("check")
    assert "n.ipynb" in command("du") and "nobody needs it" not in command("du")
    assert command("prune", "--dry-run")
    before = contents(session.directory)
    command("prune")
    assert {n for n in contents(session.directory) if "sealed" in n} == {
        n for n in before if "sealed" in n
    }
    command("diff", session.notebook, "1", "2")
    file = tmp_path / "out.ttl"
    command("export", session.notebook, "-o", file)
    other = tmp_path / "other"
    encryption.at_start(other, str(key))
    command("import", file, "--store", other)
    assert "all is well" in command("check", "--store", other)
    assert told(other) == []
    blobs = BlobStore(other)
    assert blobs.get(digest_of(CONTENT[:65_536].encode())) == CONTENT[:65_536].encode()


def test_what_nobody_needs_is_swept(tmp_path, key, command):
    turned_on(tmp_path, key)
    session = secret_session(tmp_path)
    with closing(open_store(session.directory, Keys(tmp_path / "keys"))) as store:
        (info,) = store.timelines()
        timeline = store.look_at(info.id)
        lost = timeline.resolve(1).capture("namespace").ref
        gone = timeline.delete(timeline.resolve(1).id)
        store.save(timeline.state, gone.rehung, deleted_ids=[gone.checkpoint.id])
    for folder in (session.directory, session.directory / "namespaces"):
        for file in folder.glob("sealed/*/*"):
            os.utime(file, (1, 1))
    assert session.namespaces.bytes_of([lost])
    assert "of namespaces" in command("prune")
    assert not session.namespaces.bytes_of([lost])
    assert "1 checkpoint read: all is well" in command("check")


@pytest.mark.parametrize("harm", ["no name", "another", "gone", "short", "open to all", "folder"])
def test_without_its_key_a_store_stays_closed(tmp_path, key, command, monkeypatch, harm):
    turned_on(tmp_path, key)
    session = secret_session(tmp_path)
    forget()
    before = contents(session.directory)
    if harm == "no name":
        monkeypatch.delenv(encryption.VARIABLE)
    elif harm == "another":
        key.write_bytes(os.urandom(32))
    elif harm == "gone":
        key.unlink()
    elif harm == "short":
        key.write_bytes(b"x" * 31)
    elif harm == "open to all":
        key.chmod(0o644)
    else:
        monkeypatch.setenv(encryption.VARIABLE, str(tmp_path))
    text = command("check", status=1)
    assert "encryption.json" in text and "Nothing was read, written or lost" in text
    assert str(key) in text or harm in ("no name", "folder")
    for use in (BlobStore, open_store):
        with pytest.raises(EncryptionLocked):
            use(session.directory)
    assert contents(session.directory) == before


@pytest.mark.parametrize("harm", ["flip", "empty", "huge"])
def test_the_file_with_the_key_is_damaged(tmp_path, key, harm):
    turned_on(tmp_path, key)
    file = tmp_path / "store" / encryption.FILE_NAME
    value = json.loads(file.read_text())
    if harm == "flip":
        value["key"] = value["key"][:-1] + ("0" if value["key"][-1] != "0" else "1")
    elif harm == "huge":
        value |= {"kdf": "scrypt", "n": 1 << 40, "r": 8, "p": 1}
    file.write_text("" if harm == "empty" else json.dumps(value))
    forget()
    with pytest.raises(StoreError, match=r"Nothing was read, written or lost"):
        encryption.cipher_of(tmp_path / "store")


def test_turned_on_in_the_middle(tmp_path, key, command):
    session = secret_session(tmp_path)
    assert told(session.directory)
    out = command("encrypt", "--key-file", key)
    assert "is encrypted" in out and "encrypt --rewrite seals it" in out
    # the list of checkpoints is sealed at once; content stays as it was, and is read
    assert all(name.startswith(("blobs/", "namespaces/blobs/")) for name in told(session.directory))
    assert "2 checkpoints read: all is well" in command("check")
    again = Session(tmp_path)
    with closing(again):
        assert again.timeline.resolve(1).comment == f"one {SECRET}"
        again.store.authenticate(again.timeline.id, again.timeline.resolve(1))
        again.write("new.txt", "new" * 40_000)
        again.checkpoint(VARIABLE, b"new variable" * 9, comment="new")
        assert "A kernel runs on" in command("encrypt", "--rewrite", status=1)
    assert found_in(session.directory, b"newnewnew", b"new variable") == []
    assert "content from before" in command("encrypt")
    (session.directory / f"{FILE_NAME}.v1-backup").write_text(SECRET)
    out = command("encrypt", "--rewrite")
    assert "pieces of files" in out and "pieces of variables" in out and "v1-backup" in out
    assert told(session.directory) == []
    assert "nothing in it is left that could be sealed" in command("encrypt", "--rewrite")
    assert "3 checkpoints read: all is well" in command("check")


def test_who_had_it_open_before_writes_nothing_plain(tmp_path, key):
    session = leave_store(tmp_path)
    blobs = BlobStore(session.directory)
    with closing(open_store(session.directory)) as store:
        secret = encryption.secret_in(key, session.directory, "hkdf-sha256")
        encryption.turn_on(session.directory, secret, "hkdf-sha256")
        with pytest.raises(BlobNotStored, match="encrypted meanwhile"):
            blobs.put(SECRET.encode())
        with pytest.raises(StoreError, match="encrypted meanwhile"):
            store.load_timeline(str(session.notebook), "python3", epoch="e")
    assert not found_in(session.directory, SECRET.encode())


def test_a_plain_store_is_not_written_where_encryption_is_asked_for(tmp_path, key):
    session = leave_store(tmp_path)
    with pytest.raises(EncryptionRefused, match="jupyter timetravel encrypt"):
        encryption.at_start(session.directory)
    assert not encryption.is_encrypted(session.directory)


def test_passphrase_and_change(tmp_path, key, command, monkeypatch):
    words = tmp_path / "words"
    words.write_text("correct horse battery\n")
    words.chmod(0o600)
    session = secret_session(tmp_path)
    command("encrypt", "--passphrase-file", words, "--rewrite")
    header = (session.directory / encryption.FILE_NAME).read_text()
    assert "scrypt" in header and "horse" not in header
    forget()
    assert "does not open it" in command("check", status=1)  # the key file is no passphrase
    monkeypatch.delenv(encryption.VARIABLE)
    assert "no terminal" in command("check", status=1)
    monkeypatch.setenv(encryption.VARIABLE, str(words))
    assert "all is well" in command("check")
    names = [name for name in contents(session.directory) if "sealed" in name]
    command("encrypt", "--change", "--key-file", key)
    forget()
    assert f"{words} holds 22 bytes" in command("check", status=1)
    monkeypatch.setenv(encryption.VARIABLE, str(key))
    assert "all is well" in command("check")
    assert [name for name in contents(session.directory) if "sealed" in name] == names


def at_a_terminal(answers, *words):
    """The command with a terminal of its own, at which a person answers the prompts."""
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, [sys.executable, "-c", MAIN, *map(str, words)])
    shown = b""
    with contextlib.suppress(OSError), open(terminal, "r+b", buffering=0) as file:
        while data := file.read(1000):
            shown += data
            while answers and answers[0][0].encode() in shown:
                file.write(answers.pop(0)[1].encode() + b"\n")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


def test_a_passphrase_is_asked_for(tmp_path, key, monkeypatch):
    monkeypatch.delenv(encryption.VARIABLE)
    session = secret_session(tmp_path)
    status, shown = at_a_terminal(
        [("Passphrase:", "horse"), ("Once more:", "house")], "encrypt", "--passphrase"
    )
    assert status == 1 and "not the same passphrases" in shown
    assert not encryption.is_encrypted(session.directory)
    status, shown = at_a_terminal(
        [("Passphrase:", "horse"), ("Once more:", "horse")], "encrypt", "--passphrase", "--rewrite"
    )
    assert status == 0 and "horse" not in shown, shown
    assert told(session.directory) == []
    status, shown = at_a_terminal([("Passphrase of", "horse")], "check")
    assert status == 0 and "all is well" in shown
    status, shown = at_a_terminal([("Passphrase of", "house")], "check")
    assert status == 1 and "the passphrase given does not open it" in shown


def test_a_key_in_the_store_is_refused(tmp_path, key, command):
    session = leave_store(tmp_path)
    inside = shutil.copy(key, session.directory / "key")
    assert "keep it elsewhere" in command("encrypt", "--key-file", inside, status=1)
    assert not encryption.is_encrypted(session.directory)


@pytest.mark.parametrize("harm", ["flip", "swap", "truncate"])
def test_a_damaged_blob_is_told(tmp_path, key, command, harm):
    turned_on(tmp_path, key)
    session = secret_session(tmp_path)
    digest = digest_of(CONTENT[:65_536].encode())
    name = encryption.cipher_of(session.directory).hide(digest)
    file = session.directory / "sealed" / name[:2] / name
    data = bytearray(file.read_bytes())
    if harm == "flip":
        data[len(data) // 2] ^= 1
    elif harm == "swap":
        other = next(f for f in session.directory.glob("sealed/*/*") if f != file)
        data = bytearray(other.read_bytes())
    else:
        del data[100:]
    file.write_bytes(data)
    text = command("check", status=1)
    assert digest in text and "#1 of" in text and "#2 of" in text
    with pytest.raises(BlobDamaged):
        BlobStore(session.directory).get(digest)
    # putting the same content again heals it
    BlobStore(session.directory).put(CONTENT[:65_536].encode())
    assert "all is well" in command("check")


@pytest.mark.parametrize("column", ["comment", "variables"])
def test_a_damaged_row_is_told(tmp_path, key, command, column):
    turned_on(tmp_path, key)
    session = secret_session(tmp_path)
    with closing(sqlite3.connect(session.directory / FILE_NAME)) as db:
        (value,) = db.execute(f"SELECT {column} FROM checkpoints WHERE number = 1").fetchone()
        bad = value[:-1] + bytes([value[-1] ^ 1])
        db.execute(f"UPDATE checkpoints SET {column} = ? WHERE number = 1", (bad,))
        db.commit()
    assert "altered" in command("check", status=1)
    if column == "comment":
        with pytest.raises(DatabaseDamaged):
            Session(tmp_path)


def test_the_file_with_the_key_is_gone(tmp_path, key, command):
    turned_on(tmp_path, key)
    session = secret_session(tmp_path)
    file = session.directory / encryption.FILE_NAME
    file.rename(tmp_path / "away")
    assert "encryption.json is not there" in command("list", session.notebook, status=1)
    with pytest.raises(EncryptionRefused):
        encryption.at_start(session.directory)
    (tmp_path / "away").rename(file)
    assert "all is well" in command("check")


def test_values_do_not_change_places(tmp_path, key):
    turned_on(tmp_path, key)
    session = secret_session(tmp_path)
    with closing(sqlite3.connect(session.directory / FILE_NAME)) as db:
        db.execute(
            "UPDATE checkpoints SET comment = (SELECT comment FROM checkpoints WHERE number = 2)"
            " WHERE number = 1"
        )
        db.commit()
    with closing(open_store(session.directory)) as store, pytest.raises(DatabaseDamaged):
        store.look_at(store.timelines()[0].id)


def with_large_file(base):
    session = Session(base)
    session.engine.close()
    session.engine = WorkspaceEngine(
        [session.notebook.parent],
        session.blobs,
        journal_dir=session.directory / "journal",
        copy_limit=100_000,
    )
    session.write("large.bin", os.urandom(300_000))
    return session


def test_a_file_too_large_to_copy_is_refused_with_a_note(tmp_path, key):
    turned_on(tmp_path, key)
    with closing(with_large_file(tmp_path)) as session:
        [left] = session.engine.capture().left_out
        assert left.path == b"large.bin" and "the store is encrypted" in left.reason
        assert not list((session.directory / "held").iterdir())


def test_a_file_too_large_to_copy_is_not_imported(tmp_path, key, command):
    with closing(with_large_file(tmp_path)) as session:
        session.checkpoint(VARIABLE)
    assert list((session.directory / "held").iterdir())
    command("export", session.notebook, "-o", tmp_path / "out.ttl")
    other = tmp_path / "other"
    encryption.at_start(other, str(key))
    assert "too large to copy" in command(
        "import", tmp_path / "out.ttl", "--store", other, status=1
    )
    assert not found_in(other, VARIABLE) and not list((other / "held").iterdir())


def test_a_cipher_opens_what_it_sealed_and_nothing_else():
    cipher, other = Cipher(b"a" * 32), Cipher(b"b" * 32)
    sealed = cipher.seal(b"data", "here")
    assert cipher.open(sealed, "here") == b"data" and sealed != cipher.seal(b"data", "here")
    digest = digest_of(b"x")
    assert cipher.reveal(cipher.hide(digest)) == digest and digest not in cipher.hide(digest)
    for bad in (
        lambda: cipher.open(sealed, "there"),
        lambda: other.open(sealed, "here"),
        lambda: cipher.open(b"", "here"),
        lambda: other.reveal(cipher.hide(digest)),
        lambda: cipher.reveal("zz"),
    ):
        with pytest.raises(Altered):
            bad()


def test_secret_is_only_read_from_a_file_of_ones_own(tmp_path, key):
    link = tmp_path / "link"
    link.symlink_to(key)
    assert encryption.secret_in(link, tmp_path, "hkdf-sha256") == Secret(key.read_bytes(), link)


def test_without_the_library_it_is_said(tmp_path, key):
    turned_on(tmp_path, key)
    code = f"import sys; sys.modules['cryptography'] = None; {MAIN}"
    (tmp_path / "store" / FILE_NAME).touch()
    done = subprocess.run(
        [sys.executable, "-c", code, "check"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "pip install 'jupyter_timetravel[encryption]'" in done.stderr
