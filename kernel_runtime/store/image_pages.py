"""Page files: of an encrypted store sealed in pieces, else the bytes of memory as they are.

A sealed one begins with 16 random bytes, by which its pieces know that they belong to it; what
follows are the pieces of the plain file, each sealed for its file and its place in it. Its plain
size, and these 16 bytes, are in the manifest of each image that refers to it, so that no file, no
piece and no part of one can take another's place, and nothing can be cut off.

A loader maps or reads plain bytes; so what an image needs of a sealed file is opened into a file in
memory, which nobody can write to any more and which is gone when the image has been loaded.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, Final, NamedTuple, Protocol

from kernel_runtime.store.cipher import OVERHEAD, Altered, Cipher

_PIECE: Final = 1 << 20
"""Plain bytes of a piece; the last one may have fewer."""
_SEALED_PIECE: Final = _PIECE + OVERHEAD
_ID: Final = 16
_AT_ONCE: Final = 4


class Known(NamedTuple):
    """What a manifest says of a sealed page file."""

    id: str
    """Hexadecimal."""
    size: int
    """In plain bytes."""


class Output(Protocol):
    """Where the pages of an image go that is being written."""

    def write(self, data: bytes, /) -> object: ...


class Pages(Protocol):
    """The plain bytes of a page file."""

    def __getitem__(self, at: slice, /) -> bytes: ...

    def close(self) -> object: ...


class SealedOutput:
    """Seals what is written to it; nothing of it is in the file in any other form."""

    def __init__(self, file: BinaryIO, cipher: Cipher) -> None:
        self._file, self._cipher = file, cipher
        self._id = os.urandom(_ID)
        self._waiting = bytearray()
        self._pieces = 0
        self._size = 0
        file.write(self._id)

    def write(self, data: bytes) -> None:
        """Raises OSError."""
        self._size += len(data)
        self._waiting += data
        while len(self._waiting) >= _PIECE:
            self._seal(_PIECE)

    def finish(self) -> Known:
        """To be called once, at the end. Raises OSError."""
        if self._waiting:
            self._seal(len(self._waiting))
        return Known(self._id.hex(), self._size)

    def _seal(self, size: int) -> None:
        with memoryview(self._waiting) as waiting:
            sealed = self._cipher.seal(waiting[:size], _purpose(self._id.hex(), self._pieces))
        self._file.write(sealed)
        del self._waiting[:size]
        self._pieces += 1


class SealedPages:
    """A sealed page file, opened piece by piece; the last piece is remembered."""

    def __init__(self, fd: int, cipher: Cipher, known: Known) -> None:
        """fd: stays the caller's."""
        self._fd, self._cipher, self._known = fd, cipher, known
        self._last = -1
        self._piece = b""

    def __getitem__(self, at: slice) -> bytes:
        """Raises Altered, OSError."""
        found = bytearray()
        for index in pieces_of([(at.start, at.stop - at.start)]):
            if index != self._last:
                self._piece, self._last = self.piece(index), index
            begin = index * _PIECE
            found += self._piece[max(at.start - begin, 0) : at.stop - begin]
        return bytes(found)

    def close(self) -> None:
        """Forget what was opened."""
        self._last, self._piece = -1, b""

    def piece(self, index: int) -> bytes:
        """Raises Altered, OSError."""
        sealed = os.pread(self._fd, _SEALED_PIECE, _ID + index * _SEALED_PIECE)
        piece = self._cipher.open(sealed, _purpose(self._known.id, index))
        if len(piece) != min(_PIECE, self._known.size - index * _PIECE):
            raise Altered("cut off")
        return piece

    def opened(self, pieces: Collection[int]) -> int:
        """A file in memory with these pieces at their places. Raises Altered, OSError."""
        import fcntl  # not on Windows, where this module must import too

        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        memory = os.memfd_create("pages", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.truncate(memory, self._known.size)
            with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pages") as pool:
                for _ in pool.map(lambda index: self._put(memory, index), pieces):
                    pass
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)  # not even root can write to it now
        except BaseException:
            os.close(memory)
            raise
        return memory

    def _put(self, memory: int, index: int) -> None:
        piece, at = memoryview(self.piece(index)), index * _PIECE
        while piece:
            done = os.pwrite(memory, piece, at)
            piece, at = piece[done:], at + done


def pieces_of(parts: Iterable[tuple[int, int]]) -> list[int]:
    """The pieces in which parts (offset, size) of the plain file lie, in order."""
    found: set[int] = set()
    for offset, size in parts:
        found.update(range(offset // _PIECE, (offset + size - 1) // _PIECE + 1))
    return sorted(found)


def mapped(fd: int) -> Pages:
    """A page file that is not sealed. Raises OSError."""
    return mmap.mmap(fd, 0, prot=mmap.PROT_READ) if os.fstat(fd).st_size else _Empty()


class _Empty:
    """A file without a byte cannot be mapped."""

    def __getitem__(self, at: slice) -> bytes:
        return b""

    def close(self) -> None:
        pass


def _purpose(id: str, index: int) -> str:
    return f"pages of a process image {id} {index}"
