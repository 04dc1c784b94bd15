"""What an open file holds that only its C code knows: its position, what is buffered, its newlines.

The file itself is not to be touched: asking a writable one where it is writes what it has buffered.
So a file in memory is put under the number of its descriptor, and everything is asked there. In the
copy of a session the numbers are free; elsewhere the descriptor is put back afterwards. The object
is used up by that (its buffer is empty then), so what was learned is remembered for the dump.
"""

from __future__ import annotations

import codecs
import io
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kernel_runtime.executor.namespace.registry import Context, NotKept

if TYPE_CHECKING:
    from collections.abc import Iterator

DELETED: Final = " (deleted)"
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_CR: Final = 13
_LF: Final = 10
_NEWLINES: Final = "a\rb\r\nc\nd"
_READ_AS: Final[dict[tuple[str, ...], str | None]] = {
    ("a\n", "b\n", "c\n", "d"): None,
    ("a\r", "b\r\n", "c\n", "d"): "",
    ("a\rb\r\n", "c\n", "d"): "\n",
    ("a\r", "b\r", "\nc\nd"): "\r",
    ("a\rb\r\n", "c\nd"): "\r\n",
}


@dataclass
class RawFile:
    """path: absolute. position: of the descriptor, in bytes."""

    path: str
    position: int


@dataclass
class BufferFacts:
    """position: of the next byte. pending: written to it, but not to the file yet."""

    position: int
    pending: bytes


@dataclass
class TextFacts:
    """cookie: as ``tell`` of the text file gives it; None: at the position of its buffer."""

    cookie: int | None
    newline: str | None


def _remembered(context: Context, obj: Any, learn: Any) -> Any:
    facts = _facts(context)
    if id(obj) not in facts:
        facts[id(obj)] = (obj, learn())
    return facts[id(obj)][1]


def _facts(context: Context) -> dict[int, tuple[Any, Any]]:
    facts: dict[int, tuple[Any, Any]] = context.session.__dict__.setdefault("_open_files", {})
    return facts


def raw_file(raw: io.FileIO, context: Context) -> RawFile:
    """Where an open file is on the disk. NotKept: it has no name there."""
    facts: RawFile = _remembered(context, raw, lambda: _raw_file(raw, context))
    return facts


def _raw_file(raw: io.FileIO, context: Context) -> RawFile:
    fd = raw.fileno()
    known = (getattr(context.session, "files", None) or {}).get(fd)
    if known is not None:
        path, position = known["path"], known["offset"]
    else:
        try:
            path = os.readlink(f"/proc/self/fd/{fd}")
            position = os.lseek(fd, 0, os.SEEK_CUR) if path.startswith("/") else 0
        except OSError:
            if isinstance(raw.name, str) and raw.name in DEVICES:
                return RawFile(raw.name, 0)  # a copy of the session is not told of devices
            raise NotKept("an open file cannot be kept where nothing tells its path") from None
    if path.endswith(DELETED) and not os.path.exists(path):
        raise NotKept(f"the file {path.removesuffix(DELETED)} had been deleted while it was open")
    if not path.startswith("/") or path.startswith(("/dev/pts/", "/memfd:")):
        kind = "pipe" if path.startswith("pipe:") else "file that has no name on the disk"
        raise NotKept(f"a {kind} cannot be kept: it belongs to the old process")
    return RawFile(path, position)


@contextmanager
def _in_memory(fd: int, position: int) -> Iterator[None]:
    """An empty file stands under the number ``fd``, as far on as the real one."""
    try:
        real: int | None = os.dup(fd)
    except OSError:
        real = None
    memory = os.memfd_create("timetravel")
    try:
        if memory != fd:  # a free number may be the one that it was given
            os.dup2(memory, fd, inheritable=False)
            os.close(memory)
        os.lseek(fd, position, os.SEEK_SET)
        yield
    finally:
        if real is None:
            os.close(fd)
        else:
            os.dup2(real, fd, inheritable=False)
            os.close(real)


def buffer_facts(buffer: Any, context: Context) -> BufferFacts:
    """For the three buffers of ``io`` over a FileIO."""
    facts: BufferFacts = _remembered(context, buffer, lambda: _buffer_facts(buffer, context))
    return facts


def _buffer_facts(buffer: Any, context: Context) -> BufferFacts:
    raw = raw_file(buffer.raw, context)
    fd = buffer.raw.fileno()
    with _in_memory(fd, raw.position):
        return _flushed(buffer, fd, raw.position)


def _flushed(buffer: Any, fd: int, position: int) -> BufferFacts:
    """The buffer's bytes end in the file in memory, from where the real file stood."""
    where = buffer.tell()
    if not buffer.writable():
        return BufferFacts(where, b"")
    buffer.flush()
    end = os.lseek(fd, 0, os.SEEK_CUR)
    if end <= position:  # it was reading
        return BufferFacts(where, b"")
    return BufferFacts(position, os.pread(fd, end - position, position))


def text_facts(text: io.TextIOWrapper, context: Context) -> TextFacts:
    """For a text file over a buffer over a FileIO; what is pending goes to the buffer's facts."""
    facts: TextFacts = _remembered(context, text, lambda: _text_facts(text, context))
    return facts


def _text_facts(text: io.TextIOWrapper, context: Context) -> TextFacts:
    buffer: Any = text.buffer
    raw = raw_file(buffer.raw, context)
    fd = buffer.raw.fileno()
    with _in_memory(fd, raw.position):
        cookie, rest = None, None
        if not text.readable():
            text.flush()
        else:
            try:
                cookie = text.tell()
            except OSError:  # in the middle of a loop over its lines
                rest = _rest(text, fd, raw)
        flushed = _flushed(buffer, fd, raw.position)
        if _facts(context).setdefault(id(buffer), (buffer, flushed))[1] != flushed:
            raise NotKept("a text file cannot be kept where its buffer was looked at before it")
        newline = _newline(text, fd)
    if rest is not None:
        cookie = _start_of(rest, raw.path, text, newline)
    return TextFacts(cookie, newline)


_IN_LOOP: Final = "a text file in the middle of a for loop over its lines cannot be kept: "
_STATELESS: Final = ("utf-8", "ascii", "iso8859-", "cp125", "koi8-")
_MOST_READ: Final = 1 << 26


def _rest(text: io.TextIOWrapper, fd: int, raw: RawFile) -> str:
    """What is left to read, to the end: all there is to go by, as ``tell`` refuses in a loop."""
    if text.writable() or not codecs.lookup(text.encoding).name.startswith(_STATELESS):
        raise NotKept(_IN_LOOP + "nothing tells where it is")
    try:
        with open(raw.path, "rb") as file:
            file.seek(raw.position)
            tail = file.read(_MOST_READ)
    except OSError as error:
        raise NotKept(_IN_LOOP + f"{raw.path} cannot be read") from error
    os.pwrite(fd, tail, raw.position)
    return text.read()


def _start_of(rest: str, path: str, text: io.TextIOWrapper, newline: str | None) -> int:
    """Where in the file ``rest`` begins, which goes to its end: both are walked backwards."""
    encoding = "utf-8" if text.encoding.lower() == "utf-8-sig" else text.encoding
    left = rest.encode(encoding, text.errors or "strict")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - 2 * len(left) - 2))
        there = file.read()
    at = len(there)
    for byte in reversed(left):
        if at and newline is None and byte == _LF and there[at - 1] in (_CR, _LF):
            at -= 2 if there[max(at - 2, 0) : at] == b"\r\n" else 1
        elif at and there[at - 1] == byte:
            at -= 1
        else:
            raise NotKept(_IN_LOOP + "the file has changed since")
    return size - len(there) + at


def _newline(text: io.TextIOWrapper, fd: int) -> str | None:
    """Found out by trying, in the file in memory: nothing shows what was asked for at opening."""
    os.ftruncate(fd, 0)
    if not text.readable():
        text.seek(0)
        text.write("\n")
        text.flush()
        written = os.pread(fd, 64, 0).decode(text.encoding)
        return written if written in ("\r", "\r\n") else None
    os.pwrite(fd, _NEWLINES.encode(text.encoding), 0)
    text.seek(0)
    lines = []
    while line := text.readline():
        lines.append(line)
    return _READ_AS.get(tuple(lines))
