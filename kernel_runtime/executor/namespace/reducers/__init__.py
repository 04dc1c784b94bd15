"""Reducers for objects that hold the outside world or live in libraries: imported to register."""

from kernel_runtime.executor.namespace.reducers import (
    c_types,
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
    "c_types",
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
