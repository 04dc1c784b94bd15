"""Objects and refs byte by byte: whatever is altered, it is refused or means the same."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from jupyter_timetravel.remote import layout
from jupyter_timetravel.remote.layout import BadObject, Coder
from kernel_runtime.store.cipher import Cipher
from kernel_runtime.store.digests import digest_of
from kernel_runtime.store.keys import Keys

CONTENTS = (b"", b"x", b"a list of files " * 40, os.urandom(300))


@pytest.mark.parametrize("sealed", [False, True])
def test_every_bit_of_an_object(sealed: bool) -> None:
    coder = Coder(Cipher(bytes(range(32))) if sealed else None)
    for content in CONTENTS:
        digest = digest_of(content)
        stored = coder.encode(digest, content)
        assert coder.decode(digest, stored) == content
        assert digest not in coder.name(digest) or not sealed
        for at in range(len(stored)):
            for bit in range(8):
                altered = bytearray(stored)
                altered[at] ^= 1 << bit
                try:
                    found = coder.decode(digest, bytes(altered))
                except BadObject:
                    continue
                assert found == content and not sealed
        for short in range(len(stored)):
            with pytest.raises(BadObject):
                coder.decode(digest, stored[:short])


def test_an_object_that_claims_to_be_large() -> None:
    coder = Coder(None)
    content = bytes(50 << 20)
    digest = digest_of(content)
    stored = coder.encode(digest, content)
    assert len(stored) < 10_000
    with pytest.raises(BadObject, match="larger"):
        coder.decode(digest, stored, 1 << 20)


def test_one_object_cannot_take_the_place_of_another() -> None:
    coder = Coder(Cipher(bytes(range(32))))
    first, second = b"first", b"second"
    stored = coder.encode(digest_of(first), first)
    with pytest.raises(BadObject):
        coder.decode(digest_of(second), stored)


@pytest.mark.parametrize("sealed", [False, True])
def test_every_byte_of_a_ref(sealed: bool, tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    cipher = Cipher(bytes(range(32))) if sealed else None
    name = layout.new_ref_name("0" * 32)
    told = {
        "notebook": "a.ipynb",
        "kernel_name": "k",
        "pushed_at": "2020-01-01T00:00:00+00:00",
        "checkpoints": 1,
        "bytes": 2,
        "list": "a" * 64,
        "list_bytes": 3,
    }
    id = "b" * 32 if sealed else None
    data = layout.write_ref(name, told, keys, cipher, id)
    found = layout.read_ref(name, data, keys, cipher)
    assert (found.is_ours, found.list, found.sealed) == (True, "a" * 64, id)
    for at in range(len(data)):
        altered = bytearray(data)
        altered[at] ^= 1
        try:
            other = layout.read_ref(name, bytes(altered), keys, cipher)
        except BadObject:
            continue
        assert not other.is_ours or (sealed and other.sealed != found.sealed)
    moved = layout.new_ref_name("1" * 32)
    with pytest.raises(BadObject):
        layout.read_ref(moved, data, keys, cipher)
    assert sealed or json.loads(data.splitlines()[2])["notebook"] == "a.ipynb"
