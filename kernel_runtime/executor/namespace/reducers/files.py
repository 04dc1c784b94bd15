"""Open files: by path, at the same position, with what was buffered. Loading never changes a file.

A file that was open for writing is opened again as it is: never emptied, never made. One that is
not there any more, or is shorter than where writing stood, is refused: its variable is lost.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, Final

from kernel_runtime.executor.namespace.reducers.common import make, set_attributes
from kernel_runtime.executor.namespace.reducers.probes import (
    DEVICES,
    buffer_facts,
    raw_file,
    text_facts,
)
from kernel_runtime.executor.namespace.registry import Context, NotKept, reducer

_NEVER: Final = os.O_CREAT | os.O_TRUNC | os.O_EXCL
_STANDARD: Final = ("stdout", "stderr", "stdin", "__stdout__", "__stderr__", "__stdin__")
_BUFFERED: Final = (io.BufferedReader, io.BufferedWriter, io.BufferedRandom)


def _standard_stream(obj: Any) -> tuple[Any, ...] | None:
    for name in _STANDARD:
        stream = getattr(sys, name, None)
        if obj is stream:
            return standard_stream, (name,)
        if stream is not None and obj is getattr(stream, "buffer", None):
            return standard_stream, (name, "buffer")
    return None


def standard_stream(name: str, part: str | None = None) -> Any:
    """The new process's own."""
    stream = getattr(sys, name)
    return stream if part is None else getattr(stream, part)


@reducer("ipykernel.iostream.OutStream")
def reduce_output(obj: Any, context: Context) -> Any:
    found = _standard_stream(obj)
    if found is None:
        raise NotKept("an output stream of the old process cannot be kept")
    return found


@reducer(io.FileIO)
def reduce_raw(obj: Any, context: Context) -> Any:
    if obj.closed:
        return make_closed, ("raw", obj.name, obj.mode)
    facts = raw_file(obj, context)
    return open_raw, (facts.path, obj.name, obj.mode, facts.position)


def open_raw(path: str, name: Any, mode: str, position: int) -> io.FileIO:
    """Raises NotKept where the file is not there, or writing on would leave a hole in it."""

    def opener(path: str, flags: int) -> int:
        return os.open(path, flags & ~_NEVER)

    try:
        size = os.stat(path).st_size
        if "r" not in mode and size < position and path not in DEVICES:
            raise NotKept(f"{path} is shorter now than it was: writing on would leave a hole in it")
        # "x" asks for a file that is not there yet: the opener does not
        raw = io.FileIO(path, mode, opener=opener)
    except FileNotFoundError:
        raise NotKept(f"the file {path} is not there any more") from None
    except OSError as error:
        raise NotKept(f"the file {path} cannot be opened: {error.strerror}") from None
    if path not in DEVICES:
        raw.seek(position)
    raw.name = name
    return raw


@reducer(*_BUFFERED)
def reduce_buffer(obj: Any, context: Context) -> Any:
    found = _standard_stream(obj)
    if found is not None:
        return found
    raw = obj.raw
    if type(raw) is not io.FileIO:
        return _over_another(obj, raw)
    if obj.closed:
        return make_closed, ("buffer", raw.name, raw.mode)
    facts = buffer_facts(obj, context)
    return make_buffer, (type(obj), raw, facts.position, facts.pending)


def _over_another(obj: Any, raw: Any) -> Any:
    if type(obj) is io.BufferedReader:
        return make_reader, (raw, obj.tell())
    raise NotKept(f"a writer over a {type(raw).__name__} cannot be kept")


def make_reader(raw: Any, position: int) -> Any:
    raw.seek(position)
    return io.BufferedReader(raw)


def make_buffer(cls: Any, raw: io.FileIO, position: int, pending: bytes) -> Any:
    raw.seek(position)
    buffer = cls(raw, max(io.DEFAULT_BUFFER_SIZE, len(pending)))
    if pending:
        buffer.write(pending)  # into the buffer: it is large enough
    return buffer


@reducer(io.TextIOWrapper)
def reduce_text(obj: Any, context: Context) -> Any:
    found = _standard_stream(obj)
    if found is not None:
        return found
    buffer = obj.buffer
    if obj.closed:
        return make_closed, ("text", obj.name, getattr(obj, "mode", "r"))
    how = (obj.encoding, obj.errors, obj.line_buffering, obj.write_through)
    if isinstance(buffer, _BUFFERED) and type(buffer.raw) is io.FileIO:
        facts = text_facts(obj, context)
        cookie, newline = facts.cookie, facts.newline
        if buffer_facts(buffer, context).pending:
            cookie = None
    elif obj.readable() and not obj.writable():
        try:
            cookie, newline = obj.tell(), None
        except OSError:
            raise NotKept("a text stream in the middle of a for loop cannot be kept") from None
    else:
        raise NotKept(f"a text stream over a {type(buffer).__name__} cannot be kept")
    return make_text, (type(obj), buffer, cookie, newline, *how), vars(obj)


def make_text(
    cls: Any,
    buffer: Any,
    cookie: int | None,
    newline: str | None,
    encoding: str,
    errors: str,
    line_buffering: bool,
    write_through: bool,
) -> Any:
    text = cls(buffer, encoding, errors, newline, line_buffering, write_through)
    if cookie is not None:
        text.seek(cookie)
    return text


def make_closed(kind: str, name: Any, mode: str) -> Any:
    """A closed file with its name and mode, over memory instead of its file."""
    first = "a" if "a" in mode else "w" if set("wx") & set(mode) else "r"
    raw = io.FileIO(os.memfd_create("closed"), first + ("+" if "+" in mode else ""))
    raw.name = name
    made: Any = raw
    if kind != "raw":
        ways = _BUFFERED if raw.readable() and raw.writable() else _BUFFERED[:2]
        made = ways[-1 if raw.writable() else 0](raw)
    if kind == "text":
        made = io.TextIOWrapper(made, "utf-8")
        made.mode = mode
    made.close()
    return made


@reducer("gzip.GzipFile", "bz2.BZ2File", "lzma.LZMAFile")
def reduce_compressed(obj: Any, context: Context) -> Any:
    """For reading: opened again and read up to the same place. For writing it cannot be kept."""
    kind = type(obj).__name__
    if obj.closed:
        # not obj.name: as a property, which it can be since Python 3.13, it raises
        return make_closed_compressed, (type(obj), vars(obj).get("name"))
    if not obj.readable():
        raise NotKept(f"a {kind} that is being written cannot be kept: close it first")
    file = getattr(obj, "fileobj", None) or getattr(obj, "_fp", None)
    raw = file.raw if isinstance(file, io.BufferedReader) else None
    if type(raw) is not io.FileIO:
        raise NotKept(f"a {kind} over a {type(file).__name__} cannot be kept")
    return open_compressed, (type(obj), raw_file(raw, context).path, obj.tell())


def open_compressed(cls: Any, path: str, position: int) -> Any:
    try:
        file = cls(path, "rb")
    except FileNotFoundError:
        raise NotKept(f"the file {path} is not there any more") from None
    file.seek(position)
    return file


def make_closed_compressed(cls: Any, name: Any) -> Any:
    made = cls(os.devnull, "rb")
    made.close()
    if name is not None and "name" in vars(made):
        made.name = name
    return made


@reducer("tempfile._TemporaryFileWrapper")
def reduce_named_temporary(obj: Any, context: Context) -> Any:
    """By its file; it is deleted at its end, as before."""
    state = vars(obj)
    file, delete = state["file"], state.get("delete", True)
    if file.closed:
        raise NotKept("a temporary file that was closed cannot be kept")
    return make_named_temporary, (file, state["name"], delete)


def make_named_temporary(file: Any, name: str, delete: bool) -> Any:
    import tempfile

    return tempfile._TemporaryFileWrapper(file, name, delete)


@reducer("mmap.mmap")
def reduce_mmap(obj: Any, context: Context) -> Any:
    """Memory of its own is kept by value. Of a file nothing tells the path safely."""
    try:
        obj.size()
    except (OSError, ValueError):
        pass
    else:
        raise NotKept("a mapped file (mmap) cannot be kept: map it again")
    if obj.closed or _is_mapped_file(obj):
        raise NotKept("a mapped file (mmap) cannot be kept: map it again")
    return make_mmap, (type(obj), obj[:], obj.tell())


def _is_mapped_file(obj: Any) -> bool:
    """Whether it is not plain memory, as /proc/self/maps says."""
    import ctypes

    try:
        address = ctypes.addressof(ctypes.c_char.from_buffer(obj))
    except TypeError:
        return True  # read-only: no memory of its own is
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, _, _, _, _, *name = line.split(maxsplit=5)
            start, end = (int(part, 16) for part in span.split("-"))
            if start <= address < end:
                return bool(name) and not name[0].startswith(("/dev/zero", "["))
    return True


def make_mmap(cls: Any, content: bytes, position: int) -> Any:
    memory = cls(-1, len(content))
    memory[:] = content
    memory.seek(position)
    return memory


@reducer("tempfile.SpooledTemporaryFile")
def reduce_spooled(obj: Any, context: Context) -> Any:
    if obj._rolled:
        raise NotKept("a temporary file without a name cannot be kept")
    return make, (type(obj),), dict(vars(obj)), None, None, set_attributes
