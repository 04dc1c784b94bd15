"""numpy arrays and memoryviews: memory is kept once, views go on being views of it.

An array that owns its memory is kept whole, in the order in which it lies in memory; every other
one as owner, offset, shape and strides. Memory of 64 KiB and more is stored apart from the stream,
by content, and is read straight into the new array.
"""

from __future__ import annotations

import array
import sys
from typing import Any, Final

from kernel_runtime import hashing
from kernel_runtime.executor.namespace.registry import NotKept, reducer

APART: Final = 64 << 10
_RAW_KINDS: Final = "biufcmMSUV"
_EXPORTERS: Final = (bytes, bytearray, array.array)


def _is_raw(dtype: Any) -> bool:
    """Whether its items are plain bytes, and not pointers to something."""
    return dtype.kind in _RAW_KINDS and not dtype.hasobject


def _address(arr: Any) -> int:
    return int(arr.__array_interface__["data"][0])


def _order(arr: Any) -> list[int] | None:
    """The axes from the outermost in memory to the innermost, None if there are gaps."""
    strides, shape = arr.strides, arr.shape
    axes = sorted(range(arr.ndim), key=lambda axis: (-strides[axis], -shape[axis]))
    expected = arr.itemsize
    for axis in reversed(axes):
        if shape[axis] != 1 and strides[axis] != expected:
            return None
        expected *= shape[axis]
    return axes


def _flat(arr: Any) -> Any:
    """All of the memory of an array without gaps, as an array of bytes that shares it."""
    np = sys.modules["numpy"]
    axes = _order(arr)
    assert axes is not None
    plain = np.ndarray.transpose(np.ndarray.view(arr, np.ndarray), axes)
    return plain.reshape(-1).view("u1")


def _memory_owner(arr: Any, ndarray: Any) -> Any:
    while isinstance(arr.base, ndarray):
        arr = arr.base
    return arr


def _attributes(arr: Any) -> dict[str, Any] | None:
    return getattr(arr, "__dict__", None) or None


@reducer("numpy.ndarray", "numpy.ma.MaskedArray", "numpy.ma.core.MaskedArray", once=False)
def reduce_array(arr: Any, context: Any) -> Any:
    """An array: memory of its own, a view of another array, or one of bytes and the like."""
    ndarray = sys.modules["numpy"].ndarray
    owner = _memory_owner(arr, ndarray)
    if owner is not arr:
        found = _reduce_view(arr, owner, context)
        if found is not None:
            return found
    elif isinstance(arr.base, (*_EXPORTERS, memoryview)) and _is_raw(arr.dtype) and arr.size:
        return _reduce_exported(arr, arr.base)
    elif type(arr.base).__name__ == "Tensor":
        context.notice("shared memory with a tensor; comes back as a copy")
    if not _is_raw(arr.dtype):
        return NotImplemented
    return _reduce_memory(arr, context)


def _reduce_memory(arr: Any, context: Any) -> tuple[Any, ...]:
    np = sys.modules["numpy"]
    strides: tuple[int, ...] | None = arr.strides
    source = arr
    if arr.size == 0 or _order(arr) is None:
        source, strides = np.array(np.ndarray.view(arr, np.ndarray), order="C"), None
    elif arr.flags.c_contiguous:
        strides = None
    memory: Any = memoryview(_flat(source)) if source.size and source.itemsize else b""
    data = bytes(memory) if len(memory) < APART else context.block(memory)
    made_of = (type(arr), arr.shape, arr.dtype, strides, data)
    state = (arr.flags.writeable, _attributes(arr))
    return make_array, made_of, state, None, None, set_array


def make_array(kind: Any, shape: Any, dtype: Any, strides: Any, data: Any) -> Any:
    """Rebuild an array that owns its memory."""
    np = sys.modules["numpy"]
    arr = np.ndarray.__new__(kind, shape, dtype, None, 0, strides)
    if isinstance(data, bytes):
        if data:
            _flat(arr)[:] = np.frombuffer(data, "u1")
    else:
        data.read_into(memoryview(_flat(arr)))
    return arr


def set_array(arr: Any, state: tuple[bool, dict[str, Any] | None]) -> None:
    """Attributes of a subclass, and whether it may be written to."""
    is_writeable, attributes = state
    if attributes:
        arr.__dict__.update(attributes)
    if arr.flags.writeable != is_writeable:
        arr.flags.writeable = is_writeable


def _reduce_view(arr: Any, owner: Any, context: Any) -> tuple[Any, ...] | None:
    """A view, or None if it can only be a copy."""
    if _order(owner) is None or (owner.size == 0 and not _is_raw(owner.dtype)):
        return None
    offset = _address(arr) - _address(owner)
    if not arr.size:
        offset = min(max(offset, 0), owner.nbytes)
    if not _is_raw(arr.dtype):
        is_same = arr.dtype == owner.dtype and offset % max(owner.itemsize, 1) == 0
        if not is_same or type(arr) is not type(owner) or not arr.dtype.hasobject:
            context.notice("was a view of another array; comes back as a copy")
            return None
    elif not _is_raw(owner.dtype):
        context.notice("was a view of another array; comes back as a copy")
        return None
    made_of = (type(arr), owner, offset, arr.shape, arr.strides, arr.dtype)
    state = (arr.flags.writeable, _attributes(arr))
    return make_view, made_of, state, None, None, set_array


def make_view(kind: Any, owner: Any, offset: int, shape: Any, strides: Any, dtype: Any) -> Any:
    """Rebuild a view of another array."""
    np = sys.modules["numpy"]
    if dtype.hasobject:
        order = _order(owner) or []
        flat = np.ndarray.transpose(owner, order).reshape(-1)[offset // owner.itemsize :]
        return np.lib.stride_tricks.as_strided(flat, shape, strides)
    return np.ndarray.__new__(kind, shape, dtype, _flat(owner), offset, strides)


def _reduce_exported(arr: Any, exporter: Any) -> tuple[Any, ...]:
    np = sys.modules["numpy"]
    offset = _address(arr) - _address(np.frombuffer(exporter, "u1"))
    made_of = (type(arr), exporter, offset, arr.shape, arr.strides, arr.dtype)
    state = (arr.flags.writeable, _attributes(arr))
    return make_exported, made_of, state, None, None, set_array


def make_exported(
    kind: Any, exporter: Any, offset: int, shape: Any, strides: Any, dtype: Any
) -> Any:
    """Rebuild an array whose memory is that of a bytes, bytearray, array or memoryview."""
    np = sys.modules["numpy"]
    return np.ndarray.__new__(kind, shape, dtype, exporter, offset, strides)


@reducer("numpy.void", once=False)
def reduce_record(record: Any, context: Any) -> Any:
    """A record of a structured array is a view of it; one that was made alone is a value."""
    np = sys.modules["numpy"]
    if not isinstance(record.base, np.ndarray) or record.dtype.names is None:
        return NotImplemented
    owner = _memory_owner(record.base, np.ndarray)
    if not (_is_raw(record.dtype) and _is_raw(owner.dtype)) or _order(owner) is None:
        return NotImplemented
    return make_record, (owner, _address(record) - _address(owner), record.dtype)


def make_record(owner: Any, offset: int, dtype: Any) -> Any:
    """Rebuild a record that shares its array's memory."""
    return make_view(sys.modules["numpy"].ndarray, owner, offset, (), (), dtype)[()]


@reducer("numpy.dtype", once=False)
def reduce_dtype(dtype: Any, context: Any) -> Any:
    """numpy has one object for each plain type; its pickles make others."""
    if sys.modules["numpy"].dtype(dtype.str) is not dtype:
        return NotImplemented
    return make_dtype, (dtype.str,)


def make_dtype(name: str) -> Any:
    """The one object for a plain type."""
    return sys.modules["numpy"].dtype(name)


@reducer("numpy.memmap", "numpy.core.memmap.memmap", once=False)
def reduce_memmap(arr: Any, context: Any) -> Any:
    """A mapped file by its path: what is in it is the file's own."""
    ndarray = sys.modules["numpy"].ndarray
    owner = _memory_owner(arr, ndarray)
    if owner is not arr:
        found = _reduce_view(arr, owner, context)
        if found is None:
            return _reduce_memory(ndarray.view(arr, ndarray), context)
        return found[0], found[1], (arr.flags.writeable, owner), None, None, set_mapped
    if arr.filename is None or arr.mode == "c" or not _is_raw(arr.dtype):
        context.notice("was mapped from a file; comes back as an array in memory")
        return _reduce_memory(ndarray.view(arr, ndarray), context)
    context.notice(f"is mapped from {arr.filename} again, with what is in that file then")
    mode = "r" if arr.mode == "r" else "r+"
    order = "F" if arr.flags.f_contiguous and not arr.flags.c_contiguous else "C"
    return make_memmap, (str(arr.filename), arr.dtype, mode, arr.offset, arr.shape, order)


def make_memmap(path: str, dtype: Any, mode: str, offset: int, shape: Any, order: str) -> Any:
    """Map a file again."""
    return sys.modules["numpy"].memmap(path, dtype, mode, offset, shape, order)


def set_mapped(arr: Any, state: tuple[bool, Any]) -> None:
    """A view of a mapped file knows which, as its owner does."""
    is_writeable, owner = state
    arr.__array_finalize__(owner)
    arr.flags.writeable = is_writeable


# -- memoryview -----------------------------------------------------------------------------


def _start(exporter: Any) -> int:
    """The address of the first item of anything that has a buffer."""
    with hashing.address(exporter, hashing.ANY_LAYOUT) as at:
        return at


@reducer(memoryview, once=False)
def reduce_memoryview(view: memoryview, context: Any) -> tuple[Any, ...]:
    """A memoryview of bytes, a bytearray, an array or a numpy array."""
    try:
        exporter = view.obj
    except ValueError:
        return make_released, ()
    ndarray = getattr(sys.modules.get("numpy"), "ndarray", ())
    if isinstance(exporter, ndarray):
        seen = sys.modules["numpy"].asarray(view)
        owner = _memory_owner(exporter, ndarray)
        if view.nbytes and _is_raw(owner.dtype) and _order(owner) is not None:
            offset = _address(seen) - _address(owner)
            made_of = (ndarray, owner, offset, seen.shape, seen.strides, seen.dtype)
            return make_array_memoryview, (made_of, view.readonly)
    elif isinstance(exporter, _EXPORTERS) and view.c_contiguous:
        offset = _start(view) - _start(exporter) if view.nbytes else 0
        made = (exporter, offset, view.nbytes, view.format, view.shape, view.readonly)
        return make_memoryview, made
    raise NotKept(f"a memoryview of a {type(exporter).__name__} cannot be kept")


def make_array_memoryview(made_of: tuple[Any, ...], is_readonly: bool) -> memoryview:
    """Rebuild a memoryview of an array's memory."""
    view = memoryview(make_view(*made_of))
    return view.toreadonly() if is_readonly else view


def make_memoryview(
    exporter: Any, offset: int, size: int, form: str, shape: Any, is_readonly: bool
) -> memoryview:
    """Rebuild a memoryview of bytes and the like."""
    view = memoryview(exporter).cast("B")[offset : offset + size]
    if form != "B" or len(shape) != 1:
        view = view.cast(form, shape) if size else view.cast(form)  # type: ignore[call-overload]
    return view.toreadonly() if is_readonly and not view.readonly else view


def make_released() -> memoryview:
    """A memoryview that was released already."""
    view = memoryview(b"")
    view.release()
    return view
