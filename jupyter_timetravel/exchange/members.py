"""The members of an export: a tar file of few kinds of entries, written and read strictly.

What is written is plain POSIX tar (pax), as every tar reads it, inside zstd. What is read is only
what is written here: any other kind of entry, flag or name is refused, so that nothing depends on
how forgiving a parser is. Sizes are bytes.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, Final, Literal, Protocol

Kind = Literal["file", "directory", "symlink", "hardlink", "fifo"]

BLOCK: Final = 512
END: Final = bytes(2 * BLOCK)
"""What is behind the last member."""

PIECE: Final = 1 << 20
LARGEST_PAX: Final = 1 << 20
"""Bytes of attributes and long names of one member."""

XATTR: Final = "SCHILY.xattr."
_TYPES: Final[Mapping[bytes, Kind]] = {
    tarfile.REGTYPE: "file",
    tarfile.DIRTYPE: "directory",
    tarfile.SYMTYPE: "symlink",
    tarfile.LNKTYPE: "hardlink",
    tarfile.FIFOTYPE: "fifo",
}
_NAMES: Final = {
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.CONTTYPE: "a contiguous file",
    tarfile.XGLTYPE: "a global header",
}
_PAX_KEYS: Final = frozenset(
    {"path", "linkpath", "size", "mtime", "uid", "gid", "hdrcharset", "uname", "gname"}
)


class BadMember(Exception):
    """A member that is not one of ours. name: "" where it has none yet."""

    def __init__(self, name: str, cause: str) -> None:
        super().__init__(cause)
        self.name, self.cause = name, cause


class Source(Protocol):
    """What is read from: a file, or a decompressor."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Member:
    """One entry. name and target are text as os.fsdecode gives it."""

    name: str
    kind: Kind = "file"
    size: int = 0
    mode: int = 0o600
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    target: str = ""
    xattrs: Mapping[str, bytes] = field(default_factory=dict)

    def head(self) -> bytes:
        """All that is said of it but its content, in one way: what a signature covers."""
        plain = (
            self.name, self.kind, self.size, self.mode, self.uid, self.gid, self.mtime_ns,
            self.target, sorted(self.xattrs.items()),
        )  # fmt: skip
        return ascii(plain).encode("ascii") + b"\n"


class Writer:
    """Writes members; knows the digest of all that was written."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._digest = hashlib.blake2b(digest_size=32)

    def add(self, member: Member, content: Iterable[bytes] = ()) -> None:
        """Write one. Raises OSError, ValueError where the content has another size."""
        for part in self.parts(member, content):
            self._out.write(part)

    def parts(self, member: Member, content: Iterable[bytes] = ()) -> Iterator[bytes]:
        """The bytes of one, in order; it counts as written. Raises as `add`."""
        self._digest.update(member.head())
        yield _header(member)
        written = 0
        for piece in content:
            self._digest.update(piece)
            yield piece
            written += len(piece)
        if written != member.size:
            raise ValueError(f"{member.name} changed while it was read")
        yield bytes(-written % BLOCK)

    def digest(self) -> bytes:
        """Of everything so far."""
        return self._digest.digest()

    def finish(self) -> None:
        """Write the end of the archive."""
        self._out.write(END)


def _header(member: Member) -> bytes:
    info = tarfile.TarInfo(member.name)
    info.type = next(code for code, kind in _TYPES.items() if kind == member.kind)
    info.size, info.mode, info.linkname = member.size, member.mode, member.target
    info.uid, info.gid = member.uid, member.gid
    seconds, nanoseconds = divmod(member.mtime_ns, 10**9)
    info.mtime = max(0, seconds)
    info.pax_headers = {
        XATTR + name: value.decode("utf-8", "surrogateescape")
        for name, value in member.xattrs.items()
    }
    if member.mtime_ns:
        info.pax_headers["mtime"] = f"{seconds}.{nanoseconds:09d}"
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


class Reader:
    """Reads members in order. Each one's content is read before the next one is asked for."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._digest = hashlib.blake2b(digest_size=32)
        self._left = 0
        self._padding = 0
        self._name = ""

    def digest(self) -> bytes:
        """Of everything that was read so far, heads and content, as `Writer` has it."""
        return self._digest.digest()

    def members(self) -> Iterator[Member]:
        """One after the other, up to the end of the archive. Raises BadMember."""
        while True:
            self._exactly(self._padding)
            pax: dict[str, bytes] = {}
            block = self._exactly(BLOCK)
            if block[156:157] == tarfile.XHDTYPE:
                size = _number(block[124:136], "")
                if size > LARGEST_PAX:
                    raise BadMember("", f"it has {size} bytes of attributes")
                _check(block, "")
                pax = _records(self._exactly(size))
                self._exactly(-size % BLOCK)
                block = self._exactly(BLOCK)
            if not block.strip(b"\0"):
                if pax or self._exactly(BLOCK).strip(b"\0"):
                    raise BadMember("", "it does not end as a tar file does")
                return
            member = _member(block, pax)
            self._name, self._left = member.name, member.size
            self._padding = -member.size % BLOCK
            yield member
            if self._left:
                raise BadMember(member.name, "its content was not read")

    def content(self, member: Member) -> Iterator[bytes]:
        """Its bytes, piece by piece; afterwards it counts for `digest`. Raises BadMember."""
        self._digest.update(member.head())
        while self._left:
            piece = self._source.read(min(self._left, PIECE))
            if not piece:
                raise BadMember(self._name, "the file ends in the middle of it")
            self._left -= len(piece)
            self._digest.update(piece)
            yield piece

    def whole(self, member: Member, largest: int) -> bytes:
        """Its bytes at once. Raises BadMember, also where there are more than largest."""
        if member.size > largest:
            raise BadMember(member.name, f"it has {member.size} bytes, at most {largest} may be")
        return b"".join(self.content(member))

    def _exactly(self, size: int) -> bytes:
        pieces = []
        while size:
            piece = self._source.read(size)
            if not piece:
                raise BadMember(self._name, "the file ends too early")
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


def _member(block: bytes, pax: Mapping[str, bytes]) -> Member:
    raw_name = _text(block[0:100])
    if block[257:263] == b"ustar\0" and block[345:346] != b"\0":
        raw_name = _text(block[345:500]) + b"/" + raw_name
    name = pax.get("path", raw_name).decode("utf-8", "surrogateescape")
    _check(block, name)
    code = block[156:157]
    kind = _TYPES.get(tarfile.REGTYPE if code == b"\0" else code)
    if kind is None:
        raise BadMember(name, f"it is {_NAMES.get(code, 'of a kind that no export has')}")
    unknown = [key for key in pax if key not in _PAX_KEYS and not key.startswith(XATTR)]
    if unknown:
        raise BadMember(name, f"it has an attribute that no export has ({unknown[0][:60]})")
    size = _decimal(pax["size"], name) if "size" in pax else _number(block[124:136], name)
    if kind != "file" and size:
        raise BadMember(name, f"a {kind} has no content, but it says {size} bytes")
    target = pax.get("linkpath", _text(block[157:257])).decode("utf-8", "surrogateescape")
    return Member(
        name=name.rstrip("/") if kind == "directory" else name,
        kind=kind,
        size=size,
        mode=_number(block[100:108], name) & 0o7777,
        uid=_decimal(pax["uid"], name) if "uid" in pax else _number(block[108:116], name),
        gid=_decimal(pax["gid"], name) if "gid" in pax else _number(block[116:124], name),
        mtime_ns=_time(pax["mtime"], name) if "mtime" in pax else 0,
        target=target if kind in ("symlink", "hardlink") else "",
        xattrs={key[len(XATTR) :]: value for key, value in pax.items() if key.startswith(XATTR)},
    )


def _check(block: bytes, name: str) -> None:
    counted = sum(block) - sum(block[148:156]) + 8 * ord(" ")
    if _number(block[148:156], name) != counted:
        raise BadMember(name, "its header is damaged, or this is no tar file")


def _records(data: bytes) -> dict[str, bytes]:
    """The records of a pax header: ``<length> <key>=<value>\\n``."""
    found: dict[str, bytes] = {}
    while data:
        digits = data[:20].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        record, data = data[len(digits) + 1 : length], data[length:]
        key, equals, value = record.partition(b"=")
        name = key.decode("utf-8", "surrogateescape")
        if length < 5 or not equals or not value.endswith(b"\n") or name in found:
            raise BadMember("", "its attributes are damaged")
        found[name] = value[:-1]
    return found


def _text(raw: bytes) -> bytes:
    return raw.partition(b"\0")[0]


def _number(raw: bytes, name: str) -> int:
    text = raw.strip(b" \0")
    if text and text.strip(b"01234567"):
        raise BadMember(name, "its header is damaged, or this is no tar file")
    return int(text, 8) if text else 0


def _decimal(raw: bytes, name: str) -> int:
    if not raw.isdigit() or len(raw) > 18:
        raise BadMember(name, "its header is damaged")
    return int(raw)


def _time(raw: bytes, name: str) -> int:
    seconds, _, fraction = raw.partition(b".")
    digits = seconds[1:] if seconds.startswith(b"-") else seconds
    if not digits.isdigit() or len(digits) > 12 or (fraction and not fraction.isdigit()):
        raise BadMember(name, "its time is damaged")
    return int(seconds) * 10**9 + int(fraction[:9].ljust(9, b"0") or 0)
