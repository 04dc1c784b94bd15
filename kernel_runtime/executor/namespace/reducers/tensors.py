"""PyTorch: a storage is kept once, as bytes, and every tensor that looks at it is a view again.

torch's own pickling copies a storage through its file format for each tensor alone.
"""

from __future__ import annotations

import importlib
from typing import Any

from kernel_runtime.executor.namespace.registry import Context, NotKept, reducer


def _loaded() -> Any:
    return importlib.import_module("torch")


@reducer("torch.storage.UntypedStorage", once=False)
def reduce_storage(obj: Any, context: Context) -> Any:
    """Its bytes, and where they were. A GPU's memory is not in the copy of a process."""
    device = str(obj.device)
    if device == "meta":
        return make_storage, (obj.nbytes(), None, device)
    if device != "cpu":
        raise NotKept(f"a tensor on {device} cannot be kept: a GPU's memory cannot be copied")
    if not obj.nbytes():
        return make_storage, (0, None, device)
    if not getattr(obj, "resizable", lambda: True)():  # before torch 2 nobody can tell
        context.notice("a tensor over memory of another library's comes back with its own")
    torch = _loaded()
    whole = torch.empty(0, dtype=torch.uint8).set_(obj)
    return make_storage, (obj.nbytes(), context.block(memoryview(whole.numpy())), device)


def make_storage(size: int, block: Any, device: str) -> Any:
    torch = _loaded()
    try:
        storage = torch.UntypedStorage(size, device=device)
    except (TypeError, RuntimeError):
        if device != "cpu":
            raise
        storage = torch.UntypedStorage(size)  # torch 1.13 knows no such argument
    if block is not None:
        whole = torch.empty(0, dtype=torch.uint8).set_(storage)
        block.read_into(memoryview(whole.numpy()))
    return storage


@reducer("torch.storage.TypedStorage")
def reduce_typed_storage(obj: Any, context: Context) -> Any:
    untyped = obj._untyped_storage if hasattr(obj, "_untyped_storage") else obj.untyped()
    return make_typed_storage, (untyped, obj.dtype)


def make_typed_storage(storage: Any, dtype: Any) -> Any:
    torch = _loaded()
    try:
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
    except RuntimeError:  # torch 1.13 warns of nothing, and knows no such argument
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype)


@reducer("torch.Tensor", "torch._tensor.Tensor", "torch.nn.parameter.Parameter")
def reduce_tensor(obj: Any, context: Context) -> Any:
    """A plain tensor. Sparse, quantized and nested ones and subclasses are torch's own business."""
    torch = _loaded()
    is_parameter = type(obj) is torch.nn.Parameter
    plain = type(obj) is torch.Tensor or is_parameter
    if not plain or obj.layout != torch.strided or obj.is_quantized or obj.is_nested:
        return NotImplemented
    if obj.requires_grad and not obj.is_leaf:
        context.notice("a tensor comes back without the computation that made it (requires_grad)")
    if obj.device.type not in ("cpu", "meta"):
        return NotImplemented if obj.device.type != "cuda" else _on_gpu(obj)
    view = (obj.storage_offset(), tuple(obj.shape), tuple(obj.stride()))
    bits = (obj.is_conj(), obj.is_neg())
    keeps_gradient = obj.requires_grad
    arguments = (_storage_of(obj), obj.dtype, view, bits, keeps_gradient, is_parameter)
    state = (obj.grad if obj.is_leaf else None, _attributes(obj))
    return make_tensor, arguments, state, None, None, set_up_tensor


_storages: dict[tuple[int, int, str], Any] = {}
"""By address, size and device. Before torch 2.1 each look at a storage makes another object."""


def _storage_of(obj: Any) -> Any:
    """The one object that stands for a tensor's storage; what is dumped here ends with the copy."""
    new = obj.untyped_storage() if hasattr(obj, "untyped_storage") else obj.storage().untyped()
    if not new.nbytes() or obj.device.type != "cpu":
        return new
    return _storages.setdefault((new.data_ptr(), new.nbytes(), str(obj.device)), new)


def _on_gpu(obj: Any) -> Any:
    raise NotKept(f"a tensor on {obj.device} cannot be kept: a GPU's memory cannot be copied")


def _attributes(obj: Any) -> dict[str, Any]:
    return dict(vars(obj)) if hasattr(obj, "__dict__") else {}


def make_tensor(
    storage: Any, dtype: Any, view: Any, bits: Any, requires_grad: bool, is_parameter: bool
) -> Any:
    torch = _loaded()
    offset, shape, strides = view
    with torch.no_grad():
        tensor = torch.empty(0, dtype=dtype, device=storage.device)
        tensor.set_(storage, offset, shape, strides)
        if bits[0]:
            tensor = tensor.conj()
        if bits[1]:
            tensor = torch._neg_view(tensor)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def set_up_tensor(tensor: Any, state: tuple[Any, dict[str, Any]]) -> None:
    gradient, attributes = state
    if gradient is not None:
        tensor.grad = gradient
    vars(tensor).update(attributes)


@reducer("torch._C.Generator")
def reduce_generator(obj: Any, context: Context) -> Any:
    """torch's own default generator is it again; its state is a setting."""
    torch = _loaded()
    if obj is torch.default_generator:
        return default_generator, ()
    if obj.device.type != "cpu":
        raise NotKept("a random generator on a GPU cannot be kept")
    return make_generator, (obj.get_state(),)


def default_generator() -> Any:
    torch = _loaded()
    return torch.default_generator


def make_generator(state: Any) -> Any:
    torch = _loaded()
    generator = torch.Generator()
    generator.set_state(state)
    return generator
