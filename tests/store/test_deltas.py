"""Blobs as deltas to older versions: on real files, in C and without it, with what can go wrong."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import random
import struct
from array import array

import native_build
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from store_world import aged, blob_file, damage

from kernel_runtime import hashing
from kernel_runtime.store import deltas, encryption
from kernel_runtime.store.coding import Compressed
from kernel_runtime.store.deltas import Encoder, Way, decode
from kernel_runtime.store.digests import BlobDamaged, BlobStoreFull, digest_of
from kernel_runtime.store.namespaces import NamespaceStore

LUCK = random.Random(5)
PACK = zstandard.ZstdCompressor(level=1).compress
NUMBERS = [LUCK.random() for _ in range(50_000)]
OLD = array("d", NUMBERS).tobytes()
NEW = array("d", [number + 1 for number in NUMBERS]).tobytes()
NEWER = array("d", [number + 1 + 1 for number in NUMBERS]).tobytes()
WAYS = [
    *(Way(1), Way(2), Way(4), Way(8)),
    *(Way(lane, how, c) for lane in (4, 8) for how in (1, 2) for c in (1.0, -0.3, 1e-30, 1e30)),
]


@pytest.fixture(params=["C", "Python"])
def either(request, monkeypatch):
    library = native_build.built_library() if request.param == "C" else "/nowhere/lib.so"
    monkeypatch.setattr(hashing, "LIBRARY", library)
    deltas._library.cache_clear()
    assert (deltas._library() is not None) == (request.param == "C")
    yield request.param
    deltas._library.cache_clear()


def made(new, old):
    return Encoder(PACK).encode(memoryview(new), memoryview(old), len(new))


@pytest.mark.parametrize(
    ("code", "change", "most"),
    [
        ("d", lambda x: x + 1, 0.001),
        ("d", lambda x: x + 0.1, 0.001),
        ("d", lambda x: x * 1.1, 0.001),
        ("f", lambda x: x - 3, 0.001),
        ("f", lambda x: x * 0.9, 0.05),
        ("d", lambda x: x if x < 0.99 else float("nan"), 0.05),
        ("d", lambda x: max(0.1, min(x, 0.95)), 0.3),
    ],
)
def test_what_changes_as_a_whole_takes_little(either, code, change, most):
    old = array(code, NUMBERS)
    new = array(code, map(change, old))
    delta = made(new.tobytes(), old.tobytes())
    assert delta is not None
    assert len(delta) < most * new.itemsize * len(new)
    assert decode(memoryview(delta), old.tobytes()) == new.tobytes()


def test_whole_numbers(either):
    for code in "bhiq":
        old = array(code, [LUCK.randrange(100) for _ in range(60_001)])
        new = array(code, [number + 7 for number in old])
        delta = made(new.tobytes(), old.tobytes())
        assert delta is not None
        assert len(delta) < 500
        assert decode(memoryview(delta), old.tobytes()) == new.tobytes()


def test_what_has_nothing_in_common_is_no_delta(either):
    other = LUCK.randbytes(len(OLD))
    assert made(other, OLD) is None
    assert made(OLD, OLD[:-8]) is None
    assert made(OLD[:1000], OLD[:1000]) is None  # a few bytes: not worth it


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_same_in_c_and_in_python(way, monkeypatch):
    """Numbers of all kinds: none, infinite, denormal, of either sign of zero."""
    monkeypatch.setattr(hashing, "LIBRARY", native_build.built_library())
    odd = struct.pack("<6d", 0.0, -0.0, float("inf"), float("nan"), 5e-324, 1e308)
    small = struct.pack("<6f", 0.0, -0.0, float("-inf"), float("nan"), 1e-45, 3e38)
    for count in (0, 3, 100, 5_003):
        old = odd + small + LUCK.randbytes(count)
        new = LUCK.randbytes(len(old))
        results = []
        for library in (native_build.built_library(), "/nowhere/lib.so"):
            monkeypatch.setattr(hashing, "LIBRARY", library)
            deltas._library.cache_clear()
            left = bytes(deltas._take(memoryview(new), memoryview(old), way))
            results.append(left)
            assert bytes(deltas._put(left, old, way)) == new
        assert results[0] == results[1]
    deltas._library.cache_clear()


ROUNDINGS = {"x86_64": (0x400, 0x800, 0xC00), "aarch64": (0x400000, 0x800000, 0xC00000)}


@pytest.mark.parametrize("mode", range(3))
def test_another_way_of_rounding_does_no_harm(mode, monkeypatch):
    """A library may choose one for a thread that writes, and nobody for the one that reads."""
    monkeypatch.setattr(hashing, "LIBRARY", native_build.built_library())
    deltas._library.cache_clear()
    modes = ROUNDINGS.get(os.uname().machine)
    name = ctypes.util.find_library("m")
    if modes is None or name is None:
        pytest.skip("how a way of rounding is chosen here is not known")
    maths = ctypes.CDLL(name)
    before = maths.fegetround()
    for way in WAYS:
        assert maths.fesetround(modes[mode]) == 0
        try:
            left = bytes(deltas._take(memoryview(NEW), memoryview(OLD), way))
            assert maths.fegetround() == modes[mode]
        finally:
            maths.fesetround(before)
        assert bytes(deltas._put(left, OLD, way)) == NEW
    deltas._library.cache_clear()


@pytest.mark.parametrize(("code", "lane", "just_below"), [("d", 8, -1074), ("f", 4, -149)])
def test_what_rounds_to_the_smallest_is_not_foretold(either, code, lane, just_below):
    """Where denormals are made zero so is what is just below it; it rounds up to it elsewhere."""
    smallest = {"d": -1022, "f": -126}[code]
    number = 2.0 ** (smallest + 1) - 2.0**just_below
    old = memoryview(array(code, [number] * 100).tobytes())
    new = memoryview(NEW[: len(old)])
    assert deltas._take(new, old, Way(lane, 2, 0.5)) == deltas._take(new, old, Way(lane))


@pytest.mark.parametrize("constant", [1e300, -1e300, float("inf"), float("nan"), 5e-324])
def test_a_constant_that_no_encoder_chooses(either, constant):
    """Too large or too small for a float: nothing is foretold with it."""
    for how in (1, 2):
        delta = deltas._HEAD.pack(4, how, constant) + PACK(bytes(len(OLD)))
        assert decode(memoryview(delta), OLD) == OLD


def test_a_delta_that_does_not_give_the_same_bytes_is_not_taken(monkeypatch):
    """A processor, or a mode of it, that nobody thought of."""
    assert made(NEW, OLD) is not None
    monkeypatch.setattr(deltas, "_put", lambda left, old, way: bytes(len(left)))
    assert made(NEW, OLD) is None


@given(st.binary(min_size=1, max_size=200), st.binary(max_size=60))
def test_a_strange_delta_is_refused_and_no_more(head, frame):
    for delta in (head, head[:10].ljust(10, b"\0") + PACK(frame), head[:10] + frame):
        try:
            found = decode(memoryview(delta), OLD[: len(frame)])
        except ValueError:
            continue
        assert len(found) == len(frame)


# -- in the store -----------------------------------------------------------------------------


def keep(store, data, older=None):
    """One namespace of one array; the digest of its manifest."""
    digest = digest_of(data)
    if store.missing([digest]):
        store.put(digest, data, older and digest_of(older))
    unit = {"stream": [], "buffers": [[[digest, len(data)]]]}
    return store.save_manifest({"version": 1, "units": [unit]})


def file_of(store, data):
    return blob_file(store, digest_of(data))


def size_of(store, data):
    return file_of(store, data).stat().st_size


def base_of(store, data):
    return Compressed().base_of(file_of(store, data).read_bytes()[:33])


def test_a_version_is_stored_as_what_changed(store, tmp_path, keys):
    with store.writing():
        first, second = keep(store, OLD), keep(store, NEW, OLD)
        third = keep(store, NEWER, NEW)
        store.flush()
    assert size_of(store, OLD) > 350_000
    assert size_of(store, NEW) < 2_000
    assert size_of(store, NEWER) < 20_000
    # to the whole one, not to a delta: reading takes two files at most
    assert base_of(store, NEW) == base_of(store, NEWER) == digest_of(OLD)
    again = NamespaceStore(tmp_path / "store", keys)
    for data in (NEWER, NEW, OLD):
        assert again.get(digest_of(data)) == data
    assert again.get_some([digest_of(NEW), digest_of(NEWER)]) == {
        digest_of(NEW): NEW,
        digest_of(NEWER): NEWER,
    }
    assert again.wanted([third]) == {third, digest_of(NEWER), digest_of(OLD)}
    assert again.needs(third) == {digest_of(NEWER)}
    charges = again.charges([("a", first), ("b", second), ("c", third)])
    assert charges["a"] > 350_000 > 30_000 > charges["b"] + charges["c"]
    assert again.charges([("c", third)])["c"] > 350_000  # the older one is kept for it


def test_versions_of_versions(store, tmp_path, keys):
    """What was last where that fits better, a few deep; then a whole one again."""
    versions = [OLD]
    for n in range(12):  # none of them is foretold from one two before
        numbers = array("d", versions[-1])
        versions.append(array("d", [x + 1 if n % 2 else x * 1.1 for x in numbers]).tobytes())
    with store.writing():
        manifests = [keep(store, new, old) for old, new in zip((None, *versions), versions)]
        store.flush()
    depths = [len(store.wanted([one]) - {one}) for one in manifests]
    assert max(depths) == 5
    wholes = [data for data in versions if base_of(store, data) is None]
    assert 2 <= len(wholes) <= 4
    aged(store)
    again = NamespaceStore(tmp_path / "store", keys)
    again.sweep(lambda: manifests[-2:])
    for data in versions[-2:]:
        assert again.get(digest_of(data)) == data
    assert len(list(again.blobs())) <= 2 + 6
    again.forget_unnamed(manifests[-1:])
    aged(store)
    again.sweep(lambda: manifests[-1:])
    assert set(again.blobs()) == {manifests[-1], digest_of(versions[-1])}
    assert again.get(digest_of(versions[-1])) == versions[-1]


def test_a_sweep_spares_what_others_are_deltas_to(store, tmp_path, keys):
    with store.writing():
        keep(store, OLD)
        second = keep(store, NEW, OLD)
    aged(store)
    again = NamespaceStore(tmp_path / "store", keys)
    assert again.sweep(lambda: [second]).removed == 1  # the first manifest
    assert again.get(digest_of(NEW)) == NEW
    aged(again)
    assert again.sweep(list).removed == 3
    assert list(again.blobs()) == []


def test_a_dump_that_finds_a_delta_keeps_both(store, tmp_path, keys):
    with store.writing():
        keep(store, OLD)
        keep(store, NEW, OLD)
    aged(store)
    other = NamespaceStore(tmp_path / "store", keys)
    with other.writing():
        assert other.missing([digest_of(NEW)]) == set()
        manifest = keep(other, NEW)
        store.sweep(list)  # its row is not committed yet
        other.flush()
    store.sweep(lambda: [manifest])
    assert store.get(digest_of(NEW)) == NEW


def test_an_older_version_that_is_gone_or_damaged(store, tmp_path, keys):
    with store.writing():
        keep(store, OLD)
        keep(store, NEW, OLD)
    damage(file_of(store, OLD))
    for one in (store, NamespaceStore(tmp_path / "store", keys)):
        with pytest.raises(BlobDamaged):
            one.get(digest_of(NEW))
    again = NamespaceStore(tmp_path / "store", keys)
    with again.writing():
        assert again.missing([digest_of(NEW), digest_of(OLD)]) == {digest_of(NEW), digest_of(OLD)}
        again.put(digest_of(OLD), OLD)  # heals both
    assert again.get(digest_of(NEW)) == NEW
    file_of(store, OLD).unlink()
    for one in (store, again, NamespaceStore(tmp_path / "store", keys)):
        with one.writing():
            assert one.missing([digest_of(NEW)]) == {digest_of(NEW)}
    with store.writing():
        store.put(digest_of(NEW), NEW, digest_of(OLD))
    assert base_of(store, NEW) is None
    assert store.get(digest_of(NEW)) == NEW


def test_an_older_version_that_is_damaged_after_it_was_seen(store):
    with store.writing():
        keep(store, OLD)
        keep(store, NEW, OLD)
        assert store.missing([digest_of(NEW)]) == set()
        damage(file_of(store, OLD))
        assert store.missing([digest_of(NEW)]) == {digest_of(NEW)}
        store.put(digest_of(NEW), NEW, digest_of(OLD))
    assert store.get(digest_of(NEW)) == NEW


def test_an_older_version_that_is_healed_while_it_is_read(store, monkeypatch):
    """A delta to what it was by mistake would be one to nothing."""
    encode = Compressed.encode_delta

    def slowly(codec, data, base, otherwise):
        found = encode(codec, data, base, otherwise)
        file_of(store, OLD).write_bytes(good)
        return found

    with store.writing():
        keep(store, OLD)
        good = file_of(store, OLD).read_bytes()
        damage(file_of(store, OLD))
        monkeypatch.setattr(Compressed, "encode_delta", slowly)
        keep(store, NEW, OLD)
    assert store.get(digest_of(NEW)) == NEW


def test_nothing_is_made_a_delta_to_what_is_damaged(store):
    with store.writing():
        keep(store, OLD)
        damage(file_of(store, OLD))
        keep(store, NEW, OLD)
    assert base_of(store, NEW) is None
    assert store.get(digest_of(NEW)) == NEW


def test_no_circle(store):
    """A whole one that was damaged is not healed as a delta to its own delta."""
    with store.writing():
        keep(store, OLD)
        keep(store, NEW, OLD)
        damage(file_of(store, OLD))
        store.put(digest_of(OLD), OLD, digest_of(NEW))
        assert base_of(store, OLD) is None
        file_of(store, OLD).unlink()
        store.put(digest_of(OLD), OLD, digest_of(NEW))
        assert base_of(store, OLD) is None
    assert store.get(digest_of(NEW)) == NEW
    # made by hand, as no store makes it
    for data, base in ((OLD, NEW), (NEW, OLD)):
        delta = made(data, base)
        file_of(store, data).write_bytes(b"\2" + bytes.fromhex(digest_of(base)) + delta)
    with pytest.raises(BlobDamaged):
        store.get(digest_of(OLD))
    assert store._blobs.bases([digest_of(OLD)]) == {digest_of(OLD), digest_of(NEW)}


def test_a_dump_that_failed_takes_nothing_with_it_that_others_rely_on(store):
    with pytest.raises(BlobStoreFull), store.writing():
        store.put(digest_of(OLD), OLD)
        store.put(digest_of(NEW), NEW, digest_of(OLD))
        with store.writing():
            assert store.missing([digest_of(NEW)]) == set()
            kept = keep(store, NEW)
            store.flush()
        raise BlobStoreFull(store.path, 1, 0)
    assert store.wanted([kept]) >= {digest_of(OLD)}
    assert store.get(digest_of(NEW)) == NEW


def test_a_dump_that_failed_takes_no_older_version_either(store):
    """That another dump has found there since, by the name of what is a delta to it."""
    with store.writing():
        keep(store, OLD)
        keep(store, NEW, OLD)
    file_of(store, OLD).unlink()
    with pytest.raises(BlobStoreFull), store.writing():
        assert store.missing([digest_of(OLD)]) == {digest_of(OLD)}
        store.put(digest_of(OLD), OLD)
        with store.writing():
            assert store.missing([digest_of(NEW)]) == set()
        raise BlobStoreFull(store.path, 1, 0)
    assert store.get(digest_of(NEW)) == NEW


def test_encrypted_stores_have_none(store, tmp_path, keys):
    pytest.importorskip("cryptography")
    with store.writing():
        keep(store, OLD)
        second = keep(store, NEW, OLD)
        store.flush()
    encryption.turn_on(
        tmp_path / "store", encryption.Secret(os.urandom(32), tmp_path), "hkdf-sha256"
    )
    sealed = NamespaceStore(tmp_path / "store", keys)
    with sealed.writing():
        third = keep(sealed, NEWER, NEW)
    assert sealed.wanted([second, third]) >= {digest_of(OLD)}  # the plain one is a delta still
    list(sealed.seal_plain())
    assert list(sealed._blobs.plain_blobs()) == []
    for data in (OLD, NEW, NEWER):
        assert sealed.get(digest_of(data)) == data
    assert sealed.wanted([second, third]) == {second, third, digest_of(NEW), digest_of(NEWER)}


def test_what_nobody_names_can_be_let_go(store, tmp_path, keys):
    with store.writing():
        keep(store, OLD)
        second = keep(store, NEW, OLD)
    store.forget_unnamed([second])
    aged(store)
    store.sweep(lambda: [second])
    assert not file_of(store, OLD).exists()
    assert NamespaceStore(tmp_path / "store", keys).get(digest_of(NEW)) == NEW


def test_what_cannot_be_read_is_left_and_told_when_others_are_let_go(store):
    other = bytes(reversed(OLD))
    changed = other[:9000] + bytes(100) + other[9100:]
    with store.writing():
        manifests = [keep(store, NEW, OLD) for _ in [keep(store, OLD)]]
        manifests += [keep(store, changed, other) for _ in [keep(store, other)]]
    assert base_of(store, NEW) == digest_of(OLD)
    assert base_of(store, changed) == digest_of(other)
    damage(file_of(store, NEW))
    with pytest.raises(BlobDamaged):
        store.forget_unnamed(manifests)
    assert base_of(store, changed) is None
    aged(store)
    store.sweep(lambda: manifests)
    assert not file_of(store, other).exists()
    assert store.get(digest_of(changed)) == changed
    assert file_of(store, OLD).exists()


def test_what_is_written_whole_is_on_the_disk_before_it_takes_its_place(store, monkeypatch):
    with store.writing():
        keep(store, OLD)
        second = keep(store, NEW, OLD)
        store.flush()
    synced, rename = set(), os.rename

    def note(fd):
        synced.add(os.readlink(f"/proc/self/fd/{fd}"))

    def replace(name, target):
        assert os.path.realpath(name) in synced
        rename(name, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "rename", replace)
    store.forget_unnamed([second])
    assert base_of(store, NEW) is None
