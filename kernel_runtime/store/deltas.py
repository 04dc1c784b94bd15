"""Deltas: a blob as what is left of it when it is foretold from an older version (native/delta.c).

An array that a cell changes as a whole has no byte in common with what it was, but often there is
little to say about the change: something was added to all of it, a few items here and there were
set, numbers moved a little. What is left then is nearly all zeros, and zstd makes little of it.

    0  1 byte   bytes of a lane: 1, 2, 4 or 8
    1  1 byte   how: 0, a lane is what it was; 1, a constant more; 2, so many times as much
    2  8 bytes  the constant, IEEE 754, little-endian
    10          a zstd frame: what is left of the lanes, in planes; then the bytes that fill no lane

The parts are well known: prediction and zigzag of residuals, planes as in Blosc's shuffle, and a
version as a delta to an older one as in Git's packs.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from array import array
from collections.abc import Callable, Iterator
from statistics import median
from typing import Final, NamedTuple

import zstandard

from kernel_runtime import hashing

LEAST: Final = 16 << 10
"""Bytes of a blob, below which it is written as it is."""

WORTH: Final = 0.5
"""The part of what it would take otherwise, above which a delta is not worth the second reading."""

_HEAD: Final = struct.Struct("<BBd")
_PART: Final = 2 << 10
_PARTS: Final = 4
_LOOKED_AT: Final = 1 << 10
"""Bytes of all parts by which a constant is estimated."""
_GOOD_ENOUGH: Final = 0.1
_SAME, _PLUS, _TIMES = range(3)
_CODES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
_FLOATS: Final = {4: "f", 8: "d"}
_EXPONENT: Final = {4: (23, 0xFF), 8: (52, 0x7FF)}

Pack = Callable[[bytes | bytearray], bytes]


class Way(NamedTuple):
    """How a lane is foretold."""

    lane: int
    how: int = _SAME
    constant: float = 0.0


class Encoder:
    """Makes deltas, for one thread: what served for one blob is tried first for the next."""

    def __init__(self, pack: Pack) -> None:
        """pack: zstd."""
        self._pack = pack
        self._last = Way(8)

    def encode(self, new: memoryview, old: memoryview, otherwise: int) -> bytes | None:
        """A delta, or None where it is not worth it.

        otherwise: bytes that the blob takes without. What a delta takes is estimated from a few
        parts first, so that a blob which has nothing in common with the old one costs little.
        """
        if len(new) != len(old) or len(new) < LEAST:
            return None
        limit = WORTH * otherwise
        way = self._best(_parts(new), _parts(old), limit / len(new))
        if way is None:
            return None
        left = _take(new, old, way)
        packed = self._pack(left)
        if len(packed) > limit or memoryview(_put(left, old, way)) != new:  # seen, not believed
            return None
        return b"".join((_HEAD.pack(*way), packed))

    def _best(self, new: memoryview, old: memoryview, limit: float) -> Way | None:
        def ratio(way: Way) -> float:
            return len(self._pack(_take(new, old, way))) / len(new)

        if ratio(self._last) < limit * _GOOD_ENOUGH:
            return self._last
        sizes = [(ratio(way), way) for way in _ways(new, old)]
        least, way = min(sizes)
        if least > limit:
            return None
        self._last = way
        return way


def decode(delta: memoryview, old: bytes) -> bytes:
    """The blob. Raises ValueError where delta was not made by ``encode`` for such an old one."""
    if len(delta) <= _HEAD.size:
        raise ValueError("a delta is cut off")
    way = Way(*_HEAD.unpack_from(delta))
    if way.lane not in _CODES or way.how > _TIMES or (way.how and way.lane not in _FLOATS):
        raise ValueError("not a delta of this version")
    try:
        if zstandard.frame_content_size(delta[_HEAD.size :]) != len(old):
            raise ValueError("a delta to something of another size")
        left = zstandard.ZstdDecompressor().decompress(delta[_HEAD.size :], allow_extra_data=False)
    except zstandard.ZstdError as cause:
        raise ValueError(str(cause)) from cause
    return bytes(_put(left, old, way))


def _parts(data: memoryview) -> memoryview:
    """Some of it, from all over, at the places of whole lanes."""
    step = (len(data) - _PART) // (_PARTS - 1) // 8 * 8
    return memoryview(b"".join(data[at * step : at * step + _PART] for at in range(_PARTS)))


def _ways(new: memoryview, old: memoryview) -> Iterator[Way]:
    yield from map(Way, _CODES)
    for lane in _FLOATS:
        every = len(new) // _LOOKED_AT
        pairs = [
            (float(is_), float(was))
            for is_, was in zip(_floats(new, lane)[::every], _floats(old, lane)[::every])
            if is_ != was and math.isfinite(is_) and math.isfinite(was)
        ]
        if not pairs:
            continue
        for how, found in (
            (_PLUS, [is_ - was for is_, was in pairs]),
            (_TIMES, [is_ / was for is_, was in pairs if was]),
        ):
            if found and _is_shared(exact := median(found), found):
                # rounding blurs what was added; it most often was a short number
                for constant in {exact, float(f"{exact:.6g}")}:
                    if _is_normal(constant, lane):
                        yield Way(lane, how, constant)


def _is_shared(constant: float, found: list[float]) -> bool:
    """Whether enough are about that: where nothing was added to all, none is worth a trial."""
    near = abs(constant) / 128
    return math.isfinite(constant) and 4 * sum(abs(x - constant) <= near for x in found) > len(
        found
    )


def _floats(data: memoryview, lane: int) -> memoryview[float]:
    return data.cast("f") if lane == 4 else data.cast("d")


def _is_normal(number: float, lane: int) -> bool:
    smallest, largest = (2.0**-126, 2.0**127) if lane == 4 else (2.0**-1022, 2.0**1023)
    return smallest <= abs(number) < largest


# -- in C, and without it ---------------------------------------------------------------------


def _take(new: memoryview, old: memoryview, way: Way) -> bytes | bytearray:
    """What is left of the lanes, in planes; then the bytes that fill no lane."""
    library = _library()
    if library is not None:
        return _run(library.tt_delta_take, new, old, way)
    whole = len(new) - len(new) % way.lane
    lanes = _lanes(new[:whole], way.lane)
    most = (1 << 8 * way.lane) - 1
    for at, foretold in enumerate(_foretold(old[:whole], way)):
        left = (lanes[at] - foretold) & most
        lanes[at] = (left << 1 & most) ^ (most if left >> (8 * way.lane - 1) else 0)
    data = lanes.tobytes()
    return b"".join((*(data[plane :: way.lane] for plane in range(way.lane)), new[whole:]))


def _put(left: bytes | bytearray, old: bytes | memoryview, way: Way) -> bytes | bytearray:
    """The reverse."""
    library = _library()
    if library is not None:
        return _run(library.tt_delta_put, left, old, way)
    whole = len(left) - len(left) % way.lane
    count = whole // way.lane
    data = bytearray(whole)
    for plane in range(way.lane):
        data[plane :: way.lane] = left[plane * count : (plane + 1) * count]
    lanes = _lanes(data, way.lane)
    most = (1 << 8 * way.lane) - 1
    for at, foretold in enumerate(_foretold(old[:whole], way)):
        residual = lanes[at] >> 1 ^ (most if lanes[at] & 1 else 0)
        lanes[at] = (residual + foretold) & most
    return lanes.tobytes() + left[whole:]


def _foretold(old: bytes | memoryview, way: Way) -> Iterator[int]:
    """As native/delta.c: what processors do in more than one way is not done."""
    lanes = _lanes(old, way.lane)
    if way.how == _SAME:
        yield from lanes
        return
    at, full = _EXPONENT[way.lane]
    number = struct.Struct("=" + _FLOATS[way.lane])
    bits = struct.Struct("=" + _CODES[way.lane])
    # as C rounds it; a product or a sum in twice the precision rounds to the same float
    try:
        constant: float = number.unpack(number.pack(way.constant))[0]
    except OverflowError:
        constant = math.copysign(math.inf, way.constant)
    most = (1 << 8 * way.lane) - 1
    for lane in lanes:
        exponent = lane >> at & full
        if exponent == full or (not exponent and lane << 1 & most):
            yield lane
            continue
        value: float = number.unpack(bits.pack(lane))[0]
        value = value + constant if way.how == _PLUS else value * constant
        try:
            found: int = bits.unpack(number.pack(value))[0]
        except OverflowError:  # infinite as a float
            found = lane
        exponent = found >> at & full
        yield found if 1 < exponent < full else lane


def _lanes(data: bytes | bytearray | memoryview, lane: int) -> array[int]:
    lanes = array(_CODES[lane])
    lanes.frombytes(data)
    return lanes


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(str(hashing.LIBRARY))  # CDLL: other threads of Python run meanwhile
        functions = library.tt_delta_take, library.tt_delta_put
    except (OSError, AttributeError):
        return None
    for function in functions:
        function.argtypes = (
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
            *(ctypes.c_int, ctypes.c_int, ctypes.c_double, ctypes.c_void_p),
        )
        function.restype = ctypes.c_int
    return library


def _run(
    function: Callable[..., int],
    first: bytes | bytearray | memoryview,
    old: bytes | memoryview,
    way: Way,
) -> bytearray:
    size = len(first) - len(first) % way.lane
    out = bytearray(len(first))
    with hashing.address(first) as at, hashing.address(old) as older, hashing.address(out) as to:
        if function(at, older, size, *way, to):
            raise ValueError(f"no such way: {way}")
    out[size:] = first[size:]
    return out
