"""A device that is not the CPU, on the CPU: tensors on it mix with the host's only where a GPU's would.

It computes with torch's CPU kernels, and its numbers are theirs. What it finds is code that fails on a GPU: tensors of
both in one operation, arrays made of a tensor that is not on the host, a device left out where a tensor is made.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")  # the one of torch's own names that neither initialises nor guards anything
_HOST = torch.device("cpu")
_BETWEEN = ("aten::copy_", "aten::_to_copy")
_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
_INDICES = (torch.int64, torch.bool)  # may be the host's: a GPU fetches them
_TO_HOST = ("aten::_local_scalar_dense", "aten::equal")


class Elsewhere(torch.Tensor):
    """A tensor on `DEVICE`; `here` has its values."""

    here: torch.Tensor

    def __new__(cls, here: torch.Tensor) -> Elsewhere:  # noqa: PYI034 - torch's subclasses are not subclassed
        """Put `here` there."""
        with torch.inference_mode(mode=False):  # a view made inside of it must be one of an ordinary tensor
            made = torch.Tensor._make_wrapper_subclass(
                cls,
                here.shape,
                strides=here.stride(),
                storage_offset=here.storage_offset(),
                dtype=here.dtype,
                device=_HOST,
                dispatch_device=True,  # `device` is asked of `_call`
            )
        made.here = here
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Elsewhere({self.here!r})"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _call(func, args, kwargs or {})


class Device(TorchDispatchMode):
    """While it is entered, tensors can be made on `DEVICE`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, kwargs or {})


def _call(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if func is torch.ops.prim.device.default:
        return DEVICE
    name = func.name().partition(".")[0]
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    away = any(isinstance(tensor, Elsewhere) for tensor in tensors)
    if kwargs.get("device") is not None:
        away = torch.device(kwargs["device"]) == DEVICE
        kwargs = kwargs | {"device": _HOST}
    elif away and name not in _BETWEEN:
        for tensor in tensors:
            fetched = name in _INDEXING and tensor is not args[0] and tensor.dtype in _INDICES
            if not isinstance(tensor, Elsewhere) and tensor.dim() and not fetched:
                raise RuntimeError(f"{name}: a tensor {tuple(tensor.shape)} is on the host, others are not")
    out = func(*tree_map(_here, args), **tree_map(_here, kwargs))
    if func._schema.is_mutable:
        given = {id(_here(tensor)): tensor for tensor in tensors}
        return tree_map(lambda made: given.get(id(made), made), out)
    if name in _TO_HOST or not away:
        return out
    return tree_map(lambda made: Elsewhere(made) if isinstance(made, torch.Tensor) else made, out)


def _here(value: Any) -> Any:
    return value.here if isinstance(value, Elsewhere) else value
