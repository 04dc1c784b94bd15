"""numpy's ufuncs that no name leads to: made from a Python function, or several as one by scipy."""

from __future__ import annotations

import gc
import sys
from typing import Any

from kernel_runtime.executor.namespace.registry import Context, NotKept, reducer


@reducer("numpy.ufunc")
def reduce_ufunc(obj: Any, context: Context) -> Any:
    """``numpy.frompyfunc`` (``numpy.vectorize`` keeps such): by the function that it calls."""
    if not obj.__name__.endswith(" (vectorized)"):
        return NotImplemented  # numpy's way: by name
    function = next(filter(callable, gc.get_referents(obj)), None)
    if function is None:
        raise NotKept("a ufunc cannot be kept: nothing shows the function that it calls")
    return make_ufunc, (function, obj.nin, obj.nout, obj.identity)


def make_ufunc(function: Any, taken: int, given: int, identity: Any) -> Any:
    return sys.modules["numpy"].frompyfunc(function, taken, given, identity=identity)


@reducer("scipy.special._multiufuncs.MultiUFunc")
def reduce_multiple(obj: Any, context: Context) -> Any:
    """By its name: scipy has one object of each, of ufuncs that have no name of their own."""
    special = sys.modules["scipy.special"]
    name = next((name for name, value in vars(special).items() if value is obj), None)
    return NotImplemented if name is None else (getattr, (special, name))
