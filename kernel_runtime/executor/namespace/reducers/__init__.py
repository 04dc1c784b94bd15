"""Reducers for objects that hold the outside world or live in libraries: imported to register."""

from kernel_runtime.executor.namespace.reducers import (
    caches,
    databases,
    figures,
    files,
    images,
    iterators,
    locks,
    logs,
    plain,
    refused,
    tensors,
    ufuncs,
    weak,
)

__all__ = [
    "caches",
    "databases",
    "figures",
    "files",
    "images",
    "iterators",
    "locks",
    "logs",
    "plain",
    "refused",
    "tensors",
    "ufuncs",
    "weak",
]
