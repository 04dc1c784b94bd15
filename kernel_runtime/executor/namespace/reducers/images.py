"""Pillow's images that were opened but not read yet: by path, as in the session."""

from __future__ import annotations

import importlib
import os
from typing import Any

from kernel_runtime.executor.namespace.registry import Context, NotKept, reducer


@reducer("PIL.ImageFile.ImageFile")
def reduce_opened(obj: Any, context: Context) -> Any:
    """An image that was read is pickled with its pixels. In a copy its file could not be read."""
    is_read = getattr(obj, "_im", None) is not None
    if is_read or not obj.filename or getattr(obj, "fp", None) is None:
        return NotImplemented
    return open_image, (os.path.abspath(obj.filename),)


def open_image(path: str) -> Any:
    """Raises NotKept where the file is not there any more."""
    try:
        return importlib.import_module("PIL.Image").open(path)
    except FileNotFoundError:
        raise NotKept(f"the image {path} is not there any more") from None
