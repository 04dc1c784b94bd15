"""Exceptions: their pickles call ``__init__`` with ``args``, which need not be what that takes."""

from __future__ import annotations

from typing import Any, Final

from kernel_runtime.executor.namespace.registry import reducer

_LINKS: Final = ("__cause__", "__context__", "__suppress_context__")


@reducer(BaseException, OSError, ImportError, once=False)
def reduce_exception(error: BaseException, context: Any) -> Any:
    """By ``args`` and attributes, with what caused it. Its traceback stays behind."""
    reduced = error.__reduce__()
    if not isinstance(reduced, tuple) or reduced[0] is not type(error):
        return reduced
    attributes = reduced[2] if len(reduced) > 2 else None
    links = {name: value for name in _LINKS if (value := getattr(error, name))}
    if isinstance(error, (NameError, AttributeError)) and error.name is not None:
        links["name"] = error.name
    state = (attributes or {}, links)
    return make_exception, (type(error), reduced[1]), state, None, None, set_exception


def make_exception(kind: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    """Rebuild an exception as its base in the interpreter does, past the ``__init__`` of others."""
    error = kind.__new__(kind, *arguments)
    base: Any = next(c for c in kind.__mro__ if c.__module__ == "builtins" and _is_builtin(c))
    base.__init__(error, *arguments)
    error.args = arguments if not isinstance(error, OSError) else error.args
    return error


def _is_builtin(kind: type) -> bool:
    heap_type = 1 << 9
    return not kind.__flags__ & heap_type


def set_exception(error: BaseException, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Attributes, and what it came of."""
    attributes, links = state
    error.__setstate__(attributes)
    for name, value in links.items():
        setattr(error, name, value)
