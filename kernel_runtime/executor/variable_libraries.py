"""What ``variables`` says about objects of libraries: only what their own C or Rust tells at once.

Called by ``variables.summarize`` only. A library is looked at if the user has imported it;
nothing is imported here. Exact classes of the libraries only: a subclass may be the user's code.

A describer returns size in bytes, shape, value and a fingerprint without ``id``; what is costly
(a digest of much memory) is left out unless ``in_time``.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any, Final
from zlib import crc32

Description = tuple[int | None, str | None, str | None, dict[str, Any]]
Describer = Callable[[Any, bool], Description]
Token = Callable[[Any], str]

ALWAYS_DIGESTED: Final = 1 << 12
SMALL_ARRAY: Final = 1 << 16
LARGEST_WHOLE: Final = 1 << 20
WINDOWS: Final = 64
WINDOW: Final = 1 << 10

_SCALARS: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *("str_", "datetime64", "timedelta64"),
)
_HEAP_TYPE: Final = 1 << 9
_module_dict: Final = vars(types.ModuleType)["__dict__"].__get__
_type_flags: Final = type.__dict__["__flags__"].__get__


def loaded(token: Token) -> dict[int, Describer]:
    """Describers by the ``id`` of the exact class, for the libraries that are in use.

    ``token`` tells what is seen of one item (see ``variables``). The ids hold for as long as the
    caller keeps no class alive, that is for one pass.
    """
    found: dict[int, Describer] = {}
    for module_name, add in _LIBRARIES:
        module = sys.modules.get(module_name)
        if type(module) is types.ModuleType:
            add(_module_dict(module), found, token)
    return found


def _add(
    found: dict[int, Describer],
    names: dict[str, Any],
    class_name: str,
    describe: Describer,
    *,
    is_c: bool = False,
) -> None:
    """Register a class of a module, unless something else goes by its name there."""
    cls = names.get(class_name)
    if isinstance(cls, type) and not (is_c and _type_flags(cls) & _HEAP_TYPE):
        found[id(cls)] = describe


# -- standard library -----------------------------------------------------------------------


def _written(obj: Any, in_time: bool) -> Description:
    # A path may hold bytes that are no text: UTF-8 refuses those, so they become escapes.
    text = str(obj).encode("utf-8", "backslashreplace").decode("utf-8")
    return None, None, text[:60], {"full": text}


def _datetime(obj: Any, in_time: bool) -> Description:
    # A time zone may be a class of the user's: then only the identity is told.
    return _written(obj, in_time) if obj.tzinfo is None else (None, None, None, {})


def _add_datetime(names: dict[str, Any], found: dict[int, Describer], token: Token) -> None:
    for name in ("date", "timedelta"):
        _add(found, names, name, _written, is_c=True)
    _add(found, names, "datetime", _datetime, is_c=True)


def _add_pathlib(names: dict[str, Any], found: dict[int, Describer], token: Token) -> None:
    for name in ("PosixPath", "PurePosixPath"):
        _add(found, names, name, _written)


def _add_decimal(names: dict[str, Any], found: dict[int, Describer], token: Token) -> None:
    _add(found, names, "Decimal", _written)


# -- numpy ----------------------------------------------------------------------------------


def _dimensions(shape: Any) -> str:
    return " x ".join(map(str, shape)) or "scalar"


def _add_numpy(names: dict[str, Any], found: dict[int, Describer], token: Token) -> None:
    bytes_dtype = names.get("uint8")

    def array(obj: Any, in_time: bool) -> Description:
        shape = f"{_dimensions(obj.shape)} {obj.dtype.name}"[:60]
        return obj.nbytes, shape, None, _array_digest(obj, in_time, bytes_dtype, token)

    def mapped(obj: Any, in_time: bool) -> Description:
        # Reading its pages could wait for a disk or a network.
        return obj.nbytes, f"{_dimensions(obj.shape)} {obj.dtype.name}"[:60], None, {}

    def scalar(obj: Any, in_time: bool) -> Description:
        text = str(obj.item())[:60]
        return None, None, text, {"full": f"{obj.nbytes}:{crc32(obj.tobytes())}"}

    _add(found, names, "ndarray", array, is_c=True)
    _add(found, names, "memmap", mapped)
    for name in _SCALARS:
        _add(found, names, name, scalar, is_c=True)


def _array_digest(obj: Any, in_time: bool, bytes_dtype: Any, token: Token) -> dict[str, Any]:
    """Digests of an exact ndarray: of all bytes up to 1 MB, of windows at equal strides above."""
    size = obj.nbytes
    if size > ALWAYS_DIGESTED and not in_time:
        return {}
    if obj.dtype.hasobject:
        return _object_digest(obj, token)
    if _is_on_file(obj):
        return {}
    flags = obj.flags
    if flags.c_contiguous:
        flat = obj.reshape(-1)
    elif flags.f_contiguous:
        flat = obj.T.reshape(-1)
    elif size <= SMALL_ARRAY:
        return {"full": f"{size}:{crc32(obj.tobytes())}"}
    else:
        step = max(1, obj.size // (WINDOWS * WINDOW // 8))
        return {"sample": f"{size}:{crc32(obj.flat[::step].tobytes())}"}
    data = flat.view(bytes_dtype)
    if size <= SMALL_ARRAY:
        return {"full": f"{size}:{crc32(data)}"}
    digest = 0
    step = (size - WINDOW) // (WINDOWS - 1)
    for start in range(0, size - WINDOW + 1, step):
        digest = crc32(data[start : start + WINDOW], digest)
    fingerprint: dict[str, Any] = {"sample": f"{size}:{digest}"}
    if size <= LARGEST_WHOLE:
        fingerprint["full"] = f"{size}:{crc32(data)}"
    return fingerprint


def _object_digest(obj: Any, token: Token) -> dict[str, Any]:
    if obj.dtype.kind != "O":
        return {}
    step = max(1, obj.size // WINDOWS)
    tokens = [token(item) for item in obj.flat[::step].tolist()]
    digest = crc32("\0".join(tokens).encode("utf-8", "surrogatepass"))
    return {"sample": f"{obj.size}:{digest}"}


def _is_on_file(obj: Any) -> bool:
    """Whether the array lies in mapped memory, for example a view of a ``memmap``."""
    base = obj.base
    for _ in range(8):
        if base is None:
            return False
        kind = type(base)
        if kind.__name__ in ("memmap", "mmap"):
            return True
        base = base.obj if kind is memoryview else getattr(base, "base", None)
    return False


# -- tables and tensors -----------------------------------------------------------------------


def _add_pandas(names: dict[str, Any], found: dict[int, Describer], token: Token) -> None:
    numpy = sys.modules.get("numpy")
    numpy_names = _module_dict(numpy) if type(numpy) is types.ModuleType else {}
    array_type, bytes_dtype = numpy_names.get("ndarray"), numpy_names.get("uint8")

    def frame(obj: Any, in_time: bool) -> Description:
        manager = obj._mgr
        size = 0
        parts = [str(id(axis)) for axis in manager.axes]
        for block in manager.blocks:
            values = block.values
            # Categories, times and the like keep their numbers in an array of their own.
            array = values if type(values) is array_type else getattr(values, "_ndarray", None)
            if array is not None and type(array) is array_type:
                size += array.nbytes
                digest = _array_digest(array, in_time, bytes_dtype, token)
                parts.append(str(digest.get("full", digest.get("sample"))))
            else:
                arrow = getattr(values, "_pa_array", None)
                size += 0 if arrow is None else arrow.nbytes
                parts.append(str(id(values if arrow is None else arrow)))
        sample = {"sample": ":".join(parts)} if in_time or size <= ALWAYS_DIGESTED else {}
        return size, _dimensions(obj.shape), None, sample

    def index(obj: Any, in_time: bool) -> Description:
        return None, f"length {len(obj)}", None, {}

    _add(found, names, "DataFrame", frame)
    _add(found, names, "Series", frame)
    for name in ("Index", "RangeIndex", "DatetimeIndex", "MultiIndex"):
        _add(found, names, name, index)


def _add_polars(names: dict[str, Any], found: dict[int, Describer], token: Token) -> None:
    # Almost nothing changes these in place; setting single values does, and is not noticed.
    def frame(obj: Any, in_time: bool) -> Description:
        rows, columns = obj.shape
        return obj.estimated_size(), f"{rows} x {columns}", None, {"sample": str(id(obj._df))}

    def series(obj: Any, in_time: bool) -> Description:
        return obj.estimated_size(), f"length {len(obj)}", None, {"sample": str(id(obj._s))}

    _add(found, names, "DataFrame", frame)
    _add(found, names, "Series", series)


def _add_arrow(names: dict[str, Any], found: dict[int, Describer], token: Token) -> None:
    def table(obj: Any, in_time: bool) -> Description:
        return obj.nbytes, f"{obj.num_rows} x {obj.num_columns}", None, {}

    _add(found, names, "Table", table)


def _add_torch(names: dict[str, Any], found: dict[int, Describer], token: Token) -> None:
    def tensor(obj: Any, in_time: bool) -> Description:
        shape = f"{_dimensions(obj.shape)} {obj.dtype} {obj.device}"[:60]
        # Torch counts the changes in place itself.
        size = obj.nelement() * obj.element_size()  # nbytes came with torch 2
        return size, shape, None, {"sample": f"{obj.data_ptr()}:{obj._version}"}

    _add(found, names, "Tensor", tensor)
    nn = names.get("nn")
    if type(nn) is types.ModuleType:
        _add(found, _module_dict(nn), "Parameter", tensor)


_LIBRARIES: Final = (
    ("datetime", _add_datetime),
    ("pathlib", _add_pathlib),
    ("decimal", _add_decimal),
    ("numpy", _add_numpy),
    ("pandas", _add_pandas),
    ("polars", _add_polars),
    ("pyarrow", _add_arrow),
    ("torch", _add_torch),
)
