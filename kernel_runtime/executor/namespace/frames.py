"""pandas: which blocks share memory under copy-on-write.

A frame that shares memory with another knows of it, and copies before it is written to. pandas
leaves that out of its pickles, where nothing shares memory; in ours, arrays do.
"""

from __future__ import annotations

import importlib
from typing import Any

from kernel_runtime.executor.namespace.registry import reducer


@reducer("pandas._libs.internals.BlockValuesRefs", once=False)
def reduce_references(references: Any, context: Any) -> Any:
    """Who shares the memory: filled again by those who do."""
    return make_references, ()


def make_references() -> Any:
    """An empty one."""
    return importlib.import_module("pandas._libs.internals").BlockValuesRefs()


@reducer("pandas._libs.internals.Block", once=False)
def reduce_block(block: Any, context: Any) -> Any:
    """Columns of one type, with whom they share memory."""
    references = getattr(block, "refs", None)
    if references is None:
        return NotImplemented
    return make_block, (type(block), block.values, block.mgr_locs.indexer, block.ndim, references)


def make_block(kind: Any, values: Any, places: Any, ndim: int, references: Any) -> Any:
    """Rebuild a block, which makes itself known to those it shares memory with."""
    placement = importlib.import_module("pandas._libs.internals").BlockPlacement(places)
    return kind(values, placement=placement, ndim=ndim, refs=references)


@reducer("pandas.core.internals.managers.SingleBlockManager", once=False)
def reduce_single_manager(manager: Any, context: Any) -> Any:
    """A column's: its own pickles leave the block out, and keep its values only."""
    if getattr(manager.blocks[0], "refs", None) is None:
        return NotImplemented
    return make_single_manager, (type(manager), manager.blocks[0], manager.axes[0])


def make_single_manager(kind: Any, block: Any, axis: Any) -> Any:
    """Rebuild the manager of a column."""
    return kind(block, axis)


@reducer(
    *("pandas.Index", "pandas.DatetimeIndex", "pandas.TimedeltaIndex"),
    "pandas.core.indexes.base.Index",
    "pandas.core.indexes.datetimes.DatetimeIndex",
    "pandas.core.indexes.timedeltas.TimedeltaIndex",
    once=False,
)
def reduce_index(index: Any, context: Any) -> Any:
    """An index made of a column shares its memory."""
    references = getattr(index, "_references", None)
    if references is None:
        return NotImplemented
    how, made_of, *_ = index.__reduce__()
    return how, made_of, references, None, None, set_references


def set_references(index: Any, references: Any) -> None:
    """Make a rebuilt index known to those it shares memory with."""
    index._references = references
    references.add_index_reference(index)
