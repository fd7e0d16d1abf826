"""A second device for machines that have only one: tensors that lie on the CPU and say that they are elsewhere.

Operations refuse tensors of both devices, as they do with a real second one (where numbers without dimensions, and
indices on the CPU, are allowed too). So a test sees where a move is missing. The device is there for the whole process.
"""

from __future__ import annotations

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("elsewhere")
ELSEWHERE = torch.device("elsewhere", 0)
ATTENTION = torch.nn.functional.scaled_dot_product_attention
INDEXING = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten._index_put_impl_.default}


class Elsewhere(torch.Tensor):
    """A tensor on the second device; `here` is what it holds."""

    @staticmethod
    def __new__(cls, here, requires_grad=False):
        return torch.Tensor._make_wrapper_subclass(
            cls, here.shape, strides=here.stride(), storage_offset=here.storage_offset(), dtype=here.dtype,
            device=ELSEWHERE,
        )  # fmt: skip

    def __init__(self, here, requires_grad=False):
        self.here = lower(here)

    def tolist(self):
        return self.here.tolist()

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        given = tensors(args, kwargs)
        device = given[0].device if func is torch.ops.aten.copy_.default else common_device(func, args, given)
        if kwargs.get("device") is not None:
            device, kwargs["device"] = kwargs["device"], torch.device("cpu")
        found = func(*tree_map(lower, args), **tree_map(lower, kwargs))
        changed = {id(lower(tensor)): tensor for tensor in given}  # in place: what was given is given back
        return tree_map(lambda part: changed[id(part)] if id(part) in changed else lift(part, device), found)


def common_device(func, args, given):
    if func in INDEXING:
        given = [args[0], *tensors(args[2:3])]
    devices = {part.device for part in given if part.dim()} or {given[0].device}
    if len(devices) > 1:
        raise RuntimeError(f"{func}: expected all tensors on one device, got {devices}")
    return devices.pop()


def tensors(*values):
    return [part for part in tree_leaves(values) if isinstance(part, torch.Tensor)]


def lower(value):
    return value.here if isinstance(value, Elsewhere) else value


def lift(value, device):
    plain = isinstance(value, torch.Tensor) and not isinstance(value, Elsewhere)
    return Elsewhere(value) if plain and device.type == ELSEWHERE.type else value


def _empty(size, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return Elsewhere(torch.empty(size, dtype=dtype))


def _empty_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
    return Elsewhere(torch.empty_strided(size, stride, dtype=dtype))


def _arange(start, end, step=1, dtype=None, layout=None, device=None, pin_memory=None):
    return Elsewhere(torch.arange(start, end, step, dtype=dtype))


def _copy_from(source, target, non_blocking=False):
    lower(target).copy_(lower(source))
    return target


_LIBRARY = torch.library.Library("aten", "IMPL")
_LIBRARY.impl("empty.memory_format", _empty, "PrivateUse1")
_LIBRARY.impl("empty_strided", _empty_strided, "PrivateUse1")
_LIBRARY.impl("arange.start_step", _arange, "PrivateUse1")
_LIBRARY.impl("arange.start", _arange, "PrivateUse1")
_LIBRARY.impl("arange", lambda end, **options: _arange(0, end, **options), "PrivateUse1")
_LIBRARY.impl("_copy_from", _copy_from, "PrivateUse1")


class PlainAttention(TorchFunctionMode):
    """While active, sdpa works on the second device, for which torch has no kernel."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is not ATTENTION:
            return func(*args, **kwargs)
        device = common_device(func, args, tensors(args, kwargs))
        return lift(func(*tree_map(lower, args), **tree_map(lower, kwargs)), device)


def move(module):
    """Put a module's parameters and buffers on the second device."""
    for part in module.modules():
        for name, value in part._parameters.items():
            if value is not None:
                part._parameters[name] = torch.nn.Parameter(Elsewhere(value.data), requires_grad=False)
        for name, value in part._buffers.items():
            if value is not None:
                part._buffers[name] = Elsewhere(value)
    return module
