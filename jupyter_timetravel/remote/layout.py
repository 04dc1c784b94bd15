"""What lies in a remote store, byte by byte: pure, but for the keys that sign and seal.

    objects/ab/<64 hex digits>      content; the name is the BLAKE2b-256 of its plain bytes
    objects/ab/<96 hex digits>      the same, sealed; the name is that hash, encrypted (AES-SIV)
    keys/<32 hex digits>.json       the key of what is sealed, itself encrypted: a copy of a store's
                                    encryption.json
    refs/<timeline>/<16 hex digits> what is published: names a list of checkpoints, signed
    prunes/<16 hex digits>          somebody deletes objects now, see ``pruning``; empty

An object is one byte, and the bytes or a zstd frame (``kernel_runtime.store.coding``), then sealed
where the store it came from is encrypted. A ref is a line, ``timetravel ref 1 <key of the seal or
->``, and, sealed or not, a signature, a line break and JSON.

Invariants. An object **must** be there before a list that names it, a list before a ref that
names it. What is read **must** be hashed before it is used. A name that exists **must not** be
taken for content that exists: the one who takes it has put it there and finds its mark unchanged,
or reads it. A ref is never changed; the checkpoints of a timeline are those of all of its refs, so
two who push at once lose nothing of each other's.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import zstandard

from kernel_runtime.store.cipher import Cipher
from kernel_runtime.store.coding import LARGEST, Compressed
from kernel_runtime.store.digests import digest_of
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.keys import Keys, NotAuthentic, signer

FORMAT: Final = 1
OBJECTS: Final = "objects"
REFS: Final = "refs"
PRUNES: Final = "prunes"
PIECE: Final = 4 << 20
"""Bytes of the objects into which layers, held files and images are cut."""

_PURPOSE: Final = "remote ref 1"
_HEAD: Final = b"timetravel ref 1 "
_REF: Final = re.compile(r"refs/([0-9a-f]{32})/([0-9a-f]{16})", re.ASCII)
_OBJECT: Final = re.compile(r"objects/([0-9a-f]{2})/\1[0-9a-f]{62}(?:[0-9a-f]{32})?", re.ASCII)
_SEALED: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_LARGEST_REF: Final = 1 << 20


class BadObject(Exception):
    """What was read is not what was written."""


class Coder:
    """Objects as they are stored: with a cipher, or plain. Thread safe."""

    def __init__(self, cipher: Cipher | None) -> None:
        self._cipher = cipher
        self._codec = Compressed()

    def name(self, digest: str) -> str:
        """Where an object lies."""
        hidden = digest if self._cipher is None else self._cipher.hide(digest)
        return f"{OBJECTS}/{hidden[:2]}/{hidden}"

    def encode(self, digest: str, data: bytes) -> bytes:
        """Its bytes there."""
        stored = bytes(self._codec.encode(data))
        return stored if self._cipher is None else self._cipher.seal(stored, _purpose(digest))

    def decode(self, digest: str, stored: bytes, most: int = LARGEST) -> bytes:
        """The content, verified. most: bytes that it may have. Raises BadObject."""
        try:
            if self._cipher is not None:
                stored = self._cipher.open(stored, _purpose(digest))
            if stored[:1] == b"\1" and zstandard.frame_content_size(stored[1:]) > most:
                raise BadObject("it is larger than its list says")
            data = self._codec.decode(stored)
        except (ValueError, zstandard.ZstdError) as error:
            raise BadObject(f"it is damaged ({error})") from error
        if len(data) > most or digest_of(data) != digest:
            raise BadObject("its content does not have the hash that is its name")
        return data


def _purpose(digest: str) -> str:
    return f"remote object {digest}"


@dataclass(frozen=True)
class Ref:
    """A published list of checkpoints. list: digest of the object that it is."""

    name: str
    timeline: str
    sealed: str | None
    """Id of the key that seals it and all that it names."""
    key: str
    is_ours: bool
    """Whether this user's key signed it."""
    notebook: str
    kernel_name: str
    pushed_at: str
    checkpoints: int
    bytes: int
    list: str
    list_bytes: int


def sealed_with(data: bytes) -> str | None:
    """The id of the key that a ref is sealed with. Raises BadObject."""
    head, _, _ = data[:200].partition(b"\n")
    text = head[len(_HEAD) :].decode("ascii", "replace")
    if not head.startswith(_HEAD) or not (text == "-" or _SEALED.fullmatch(text)):
        raise BadObject("it is no ref of this version")
    return None if text == "-" else text


def is_object(name: str) -> bool:
    """Whether it can be one of ours. What else lies there belongs to somebody else."""
    return _OBJECT.fullmatch(name) is not None


def new_ref_name(timeline: str) -> str:
    """The name of a ref that nobody has."""
    return f"{REFS}/{timeline}/{secrets.token_hex(8)}"


def write_ref(
    name: str, told: Mapping[str, Any], keys: Keys, cipher: Cipher | None, sealed: str | None
) -> bytes:
    """A ref. told: the fields of ``Ref`` that are in it. Raises KeyUnusable."""
    body = json.dumps({"format": FORMAT, **told}, sort_keys=True).encode("ascii")
    signed = keys.sign(_PURPOSE, name.encode() + b"\n" + body).encode() + b"\n" + body
    if cipher is not None:
        signed = cipher.seal(signed, f"remote {name}")
    return _HEAD + (sealed or "-").encode() + b"\n" + signed


def read_ref(name: str, data: bytes, keys: Keys, cipher: Cipher | None) -> Ref:
    """Understand one, whoever signed it. Raises BadObject where it is none or was altered."""
    sealed = sealed_with(data)
    place = _REF.fullmatch(name)
    if place is None or len(data) > _LARGEST_REF:
        raise BadObject("it is no ref of this version")
    signed = data.partition(b"\n")[2]
    try:
        if sealed is not None and cipher is not None:
            signed = cipher.open(signed, f"remote {name}")
        signature, _, body = signed.partition(b"\n")
        told = json.loads(body)
        if told["format"] != FORMAT:
            raise BadObject(f"its format is {told['format']!r:.40}; this version knows {FORMAT}")
        text = signature.decode("ascii")
        ours = signer(text) == keys.id
        if ours:
            keys.check(_PURPOSE, name.encode() + b"\n" + body, text, "It")
        found = Ref(
            name=name,
            timeline=place[1],
            sealed=sealed,
            key=_text(signer(text) or "none"),
            is_ours=ours,
            notebook=_text(told["notebook"]),
            kernel_name=_text(told["kernel_name"]),
            pushed_at=datetime.fromisoformat(_text(told["pushed_at"])).isoformat(),
            checkpoints=int(told["checkpoints"]),
            bytes=int(told["bytes"]),
            list=_text(told["list"]),
            list_bytes=int(told["list_bytes"]),
        )
    except NotAuthentic as error:
        raise BadObject("it was altered after it was signed with your key") from error
    except (ValueError, KeyError, TypeError, StoreError) as error:
        raise BadObject(f"it is damaged ({error!r:.100})") from error
    if not _DIGEST.fullmatch(found.list):
        raise BadObject("it names no list")
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 4096:
        raise TypeError("something is in the place of a text")
    return value
