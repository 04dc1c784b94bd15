"""The store of namespaces on real files: what is kept comes back, altered content never does."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from store_world import aged, blob_file, damage

from kernel_runtime.store.coding import Compressed
from kernel_runtime.store.digests import BlobDamaged, BlobMissing, BlobStoreFull, digest_of
from kernel_runtime.store.keys import Keys, NotAuthentic, NotTrusted
from kernel_runtime.store.namespaces import NamespaceStore, NamespaceUnusable

ROOT = Path(__file__).resolve().parents[2]
PLAIN = b"a table of numbers " * 20_000
DENSE = os.urandom(300_000)


def unit(*streams, buffers=()):
    pieces = [[digest_of(data), len(data)] for data in streams]
    return {"id": 0, "names": ["x"], "stream": pieces, "buffers": [list(b) for b in buffers]}


def keep(store, *blobs, **more):
    """Store these as one namespace."""
    for data in blobs:
        store.put(digest_of(data), data)
    return store.save_manifest({"version": 1, "units": [unit(*blobs)], **more})


def test_what_is_stored_comes_back(store, tmp_path, keys):
    with store.writing():
        assert store.missing([digest_of(PLAIN), digest_of(DENSE)]) == {
            digest_of(PLAIN),
            digest_of(DENSE),
        }
        made = keep(store, PLAIN, DENSE, state={"cwd": "/é"})
        assert store.missing([digest_of(PLAIN), digest_of(DENSE), made]) == set()
        store.flush()
    again = NamespaceStore(tmp_path / "store", keys)
    assert again.get(digest_of(PLAIN)) == PLAIN
    assert again.get(digest_of(DENSE)) == DENSE
    assert again.manifest(made)["state"] == {"cwd": "/é"}
    assert again.needs(made) == {digest_of(PLAIN), digest_of(DENSE)}
    assert again.missing(again.needs(made)) == set()
    assert sorted(again.blobs()) == sorted([made, *again.needs(made)])
    assert again.bytes_of([digest_of(PLAIN)]) < 8192 < again.bytes_of([digest_of(DENSE)])
    assert keep(again, PLAIN, DENSE, state={"cwd": "/é"}) == made


def test_what_each_adds(store):
    common = os.urandom(200_000)
    first, second = keep(store, common, DENSE), keep(store, common, b"little")
    charges = store.charges([("b", second), ("a", first)])
    assert charges["b"] < 230_000 < 300_000 < charges["a"] < 330_000
    assert sum(charges.values()) == store.bytes_of(store.wanted([first, second]))


def test_all_is_private_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        store = NamespaceStore(tmp_path / "s", Keys(tmp_path / "k"))
        with store.writing():
            keep(store, PLAIN)
            files = [*(tmp_path / "s" / "namespaces").rglob("*"), tmp_path / "s" / "namespaces"]
    finally:
        os.umask(before)
    assert {stat.S_IMODE(f.stat().st_mode) for f in files if f.is_dir()} == {0o700}
    assert {stat.S_IMODE(f.stat().st_mode) for f in files if f.is_file()} == {0o600}


@pytest.mark.parametrize("data", [b"", b"x", PLAIN, DENSE, memoryview(PLAIN)[3:-5]])
def test_coding(data):
    codec = Compressed()
    assert codec.decode(bytes(codec.encode(data))) == data


@pytest.mark.parametrize("stored", [b"", b"\2x", b"\1x", b"\1" + bytes(Compressed().encode(PLAIN))])
def test_what_no_codec_wrote(stored):
    with pytest.raises(ValueError):
        Compressed().decode(stored)


def test_a_bomb_is_not_unpacked():
    # RFC 8878: magic, a frame header with an 8-byte content size of 1 TiB, one RLE block.
    frame = b"\x28\xb5\x2f\xfd" + b"\xe0" + (1 << 40).to_bytes(8, "little") + b"\x03\x00\x00\x00"
    with pytest.raises(ValueError, match="absurd"):
        Compressed().decode(b"\1" + frame)


def test_every_flipped_byte_is_noticed_and_equal_content_heals(store):
    small = b"0123456789" * 30
    made = keep(store, small)
    for digest, read in [(digest_of(small), store.get), (made, store.manifest)]:
        file = blob_file(store, digest)
        good, value = file.read_bytes(), read(digest)
        for at in range(len(good)):
            file.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
            try:
                assert read(digest) == value  # zstd has bits that mean nothing
            except BlobDamaged as problem:
                assert digest[:12] in str(problem)
        for cut in (0, 1, len(good) // 2):
            file.write_bytes(good[:cut])
            assert store.missing([digest]) == {digest}
        file.unlink()
        with pytest.raises(BlobMissing, match=digest[:12]):
            read(digest)
    assert keep(store, small) == made
    assert store.manifest(made) and store.get(digest_of(small)) == small


def test_damage_is_seen_by_the_session_that_wrote_it(store):
    made = keep(store, PLAIN)
    damage(blob_file(store, digest_of(PLAIN)))
    assert store.missing(store.needs(made)) == {digest_of(PLAIN)}
    store.put(digest_of(PLAIN), PLAIN)
    assert store.get(digest_of(PLAIN)) == PLAIN


def test_a_few_blobs_at_once_are_verified_like_one(store):
    pieces = [bytes([number]) * 131_072 for number in range(4)]
    names = [digest_of(piece) for piece in pieces]
    keep(store, *pieces, PLAIN)
    assert store.get_some(names) == dict(zip(names, pieces, strict=True))
    assert store.get_some([names[0], digest_of(PLAIN)]).keys() == {names[0], digest_of(PLAIN)}
    # another's content under this name, a damaged file, none at all
    blob_file(store, names[1]).write_bytes(blob_file(store, names[0]).read_bytes())
    damage(blob_file(store, names[2]))
    assert store.get_some([*names, digest_of(b"never put")]).keys() == {names[0], names[3]}
    with pytest.raises(BlobDamaged):
        store.get(names[1])


def test_a_manifest_of_another_key(store, tmp_path):
    theirs = NamespaceStore(tmp_path / "theirs", Keys(tmp_path / "their keys"))
    made = keep(theirs, PLAIN)
    manifest, signature = theirs.look_at(made)
    taken = store.save_foreign(manifest, signature)
    assert taken == made
    assert not store.is_trusted(taken)
    with pytest.raises(NotTrusted, match=r"not yours.*jupyter timetravel trust"):
        store.manifest(taken)
    assert store.needs(taken) == {digest_of(PLAIN)}
    adopted = store.adopt(taken)
    assert store.manifest(adopted) == manifest
    assert store.is_trusted(adopted)


def test_a_manifest_that_somebody_changed(store):
    made = keep(store, PLAIN)
    manifest, signature = store.look_at(made)
    changed = store.save_foreign({**manifest, "python": "2.7"}, signature)
    with pytest.raises(NotAuthentic, match="altered"):
        store.manifest(changed)


@pytest.mark.parametrize(
    "manifest",
    [{"version": 2}, {"units": []}, {"version": 1, "units": [unit(buffers=[[["../../x", 1]]])]}],
)
def test_a_manifest_that_is_not_one(store, manifest):
    made = store.save_manifest(manifest)
    with pytest.raises(NamespaceUnusable):
        store.needs(made)
    with pytest.raises(NamespaceUnusable, match="not a manifest"):
        store.put(digest_of(PLAIN), PLAIN)
        store.manifest(digest_of(PLAIN))


def test_names_from_the_executor_are_no_paths(store, tmp_path):
    aim = tmp_path / "aim"
    aim.write_text("x")
    os.utime(aim, (1, 1))
    for name in (str(aim), "../../../aim", "A" * 64, 5):
        with pytest.raises(NamespaceUnusable):
            store.missing([name])
        with pytest.raises(NamespaceUnusable):
            store.get(name)
    assert aim.stat().st_mtime == 1
    with pytest.raises(BlobDamaged):
        store.put("0" * 64, b"something else")


# -- deleting -------------------------------------------------------------------------------------


def test_a_sweep_takes_what_no_kept_manifest_needs(store):
    old = keep(store, PLAIN, DENSE)
    new = keep(store, PLAIN)
    assert aged(store).sweep(lambda: [old, new]).removed == 0
    swept = store.sweep(lambda: [new])
    assert swept.removed == 2 and swept.freed_bytes >= len(DENSE)
    assert set(store.blobs()) == {new, digest_of(PLAIN)}
    assert store.sweep(list).removed == 2
    assert list(store.blobs()) == []


def test_a_sweep_spares_what_a_dump_relies_on(store, tmp_path, keys):
    keep(store, PLAIN)
    aged(store)
    other = NamespaceStore(tmp_path / "store", keys)
    with other.writing():
        assert other.missing([digest_of(PLAIN)]) == set()
        store.sweep(list)
        assert other.get(digest_of(PLAIN)) == PLAIN
        made = keep(other, DENSE, PLAIN)
        store.sweep(list)  # its checkpoint is not committed yet
    aged(store).sweep(lambda: [made])
    assert set(store.blobs()) == {made, digest_of(PLAIN), digest_of(DENSE)}


def test_a_dump_that_begins_or_ends_during_a_sweep(store, tmp_path, keys):
    other = NamespaceStore(tmp_path / "store", keys)
    committed = []
    with other.writing():
        kept_late = keep(other, b"late")

        def ends():
            committed.append(kept_late)
            return []  # as if the list had been read just before that commit

        store.sweep(ends)
    assert other.manifest(kept_late)
    keep(store, PLAIN)
    aged(store)

    def begins():
        with other.writing():
            assert other.missing([digest_of(PLAIN)]) == set()
            committed.append(keep(other, PLAIN, b"found"))
        return []

    store.sweep(begins)
    assert other.get(digest_of(PLAIN)) == PLAIN
    assert other.manifest(committed[-1])


def test_a_killed_dump_holds_nothing(store, tmp_path, keys):
    code = (
        "import sys, os, signal; from pathlib import Path\n"
        "from kernel_runtime.store.namespaces import NamespaceStore\n"
        "from kernel_runtime.store.keys import Keys\n"
        "store = NamespaceStore(Path(sys.argv[1]), Keys(Path(sys.argv[2])))\n"
        "with store.writing():\n"
        "    store.save_manifest({'version': 1, 'units': []})\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "store"), str(keys.path.parent)]
    subprocess.run(command, cwd=ROOT, check=False)
    assert len(list(store.blobs())) == 1
    assert aged(store).sweep(list).removed == 1


@pytest.mark.parametrize("step_s", [-86_400, 86_400 * 3650])
def test_a_clock_that_jumps(store, tmp_path, keys, step_s, monkeypatch):
    keep(store, PLAIN)
    for file in store.path.rglob("*"):
        moment = file.stat().st_mtime + step_s
        os.utime(file, (moment, moment))
    with store.writing():
        [lease] = (store.path / "leases").iterdir()
        moment = lease.stat().st_mtime + 1000  # it began before the clock went back
        os.utime(lease, (moment, moment))
        store.sweep(list)
        assert store.get(digest_of(PLAIN)) == PLAIN
    for _ in range(2):  # what seems to be of the future goes the second time
        store.sweep(list)
    assert list(store.blobs()) == []


def test_a_dump_that_fails_leaves_what_another_process_has_put_meanwhile(
    store, tmp_path, keys, monkeypatch
):
    other = NamespaceStore(tmp_path / "store", keys)
    encode = Compressed.encode

    def slowly(codec, data):
        monkeypatch.undo()
        keep(other, PLAIN)
        return encode(codec, data)

    monkeypatch.setattr(Compressed, "encode", slowly)
    with pytest.raises(BlobStoreFull), store.writing():
        store.put(digest_of(PLAIN), PLAIN)
        raise BlobStoreFull(store.path, 1, 0)
    assert other.get(digest_of(PLAIN)) == PLAIN


def test_a_dump_that_fails_leaves_what_was_found_as_soon_as_it_was_there(
    store, tmp_path, keys, monkeypatch
):
    other = NamespaceStore(tmp_path / "store", keys)
    link = os.link

    def slowly(name, target):
        link(name, target)
        assert other.missing([digest_of(PLAIN)]) == set()

    monkeypatch.setattr(os, "link", slowly)
    with pytest.raises(BlobStoreFull), store.writing():
        store.put(digest_of(PLAIN), PLAIN)
        raise BlobStoreFull(store.path, 1, 0)
    assert other.get(digest_of(PLAIN)) == PLAIN


def test_a_dump_that_fails_leaves_what_was_found_in_the_same_tick_of_the_clock(
    store, tmp_path, keys, monkeypatch
):
    other = NamespaceStore(tmp_path / "store", keys)
    real, now_ns = os.utime, os.stat(tmp_path).st_mtime_ns
    monkeypatch.setattr(os, "utime", lambda file, ns=None: real(file, ns=ns or (now_ns, now_ns)))
    with pytest.raises(BlobStoreFull), store.writing():
        store.put(digest_of(PLAIN), PLAIN)
        assert other.missing([digest_of(PLAIN)]) == set()
        raise BlobStoreFull(store.path, 1, 0)
    assert other.get(digest_of(PLAIN)) == PLAIN


def test_a_sweep_that_cannot_read_a_manifest_deletes_nothing(store):
    made, other = keep(store, PLAIN), keep(store, DENSE)
    aged(store)
    file = blob_file(store, made)
    good = file.read_bytes()
    damage(file)
    with pytest.raises(BlobDamaged):
        store.sweep(lambda: [made, other])
    assert store.missing([digest_of(PLAIN), digest_of(DENSE)]) == set()
    file.write_bytes(good)
    assert aged(store).sweep(lambda: [made]).removed == 2
    file.unlink()
    assert store.sweep(lambda: [made]).removed == 1


def test_threads_that_write_while_others_sweep(store):
    """What was kept under `writing` is whole, whatever goes on beside it."""
    pieces = [bytes([n]) * 5000 for n in range(20)]
    kept: set[str] = set()
    problems = []
    done = threading.Event()

    def write(which):
        for turn in range(25):
            with store.writing():
                some = pieces[(turn * 7 + which) % 20 :][:3]
                absent = store.missing([digest_of(p) for p in some])
                for piece in some:
                    if digest_of(piece) in absent:
                        store.put(digest_of(piece), piece)
                made = store.save_manifest({"version": 1, "units": [unit(*some)], "n": which})
                kept.add(made)
            if store.missing([made, *store.needs(made)]):
                problems.append(made)
            if turn % 3 == 0:
                kept.discard(made)

    def sweep():
        while not done.is_set():
            store.sweep(lambda: set(kept))

    # Each thread names its manifests apart, so that none takes away what another keeps.
    writers = [threading.Thread(target=write, args=(n,)) for n in range(3)]
    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    sweeper.join()
    assert not problems
    for made in kept:
        assert store.missing([made, *store.needs(made)]) == set()
    assert not list((store.path / "leases").iterdir())
