"""Weights in the layout that the processor multiplies with: a pass over a few tokens then costs little more than one.

On a CPU a product with a few rows mostly waits for the weights, and the usual call orders them anew each time; with two
to eight rows that costs more than the product. Ordered once, they serve every pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .int8_linear import has_int8_layers

_ROWS = 16  # what the layout is chosen for: the rows of a verified block; more and fewer are served as well


class PackedProduct:
    """`torch.nn.functional.linear` that keeps the weight ordered for the processor.

    The ordered copy is made at the first use, and again when the weight is another one or has changed, but for changes
    through its `.data`, which PyTorch does not count. Where it can't be used (gradients are wanted, another device or
    dtype, autocast) the product is the usual one.
    """

    def __init__(self) -> None:
        # What it was made from, the ordered copy, and the weight: while that is held no other gets its address.
        self._kept: tuple[tuple[Any, ...], Tensor, Tensor] | None = None

    def __call__(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """(…, in), (out, in) and (out,) to (…, out)."""
        if not _serves(input, weight):
            return F.linear(input, weight, bias)
        found: Tensor = torch.ops.mkldnn._linear_pointwise(input, self._ordered(weight), bias, "none", [], "")
        return found

    def _ordered(self, weight: Tensor) -> Tensor:
        version = 0 if weight.is_inference() else weight._version
        made_from = (weight.data_ptr(), version, weight.dtype, weight.shape)
        kept = self._kept
        if kept is None or kept[0] != made_from:
            source = weight.detach()
            # In one assignment, so that another thread sees the old ones or the new ones.
            kept = self._kept = (made_from, torch.ops.mkldnn._reorder_linear_weight(source, _ROWS), source)
        return kept[1]

    def __deepcopy__(self, memo: Any) -> PackedProduct:
        """Without the ordered copy, which is made again where it is copied to."""
        return PackedProduct()

    def __getstate__(self) -> dict[str, Any]:
        """As for `__deepcopy__`."""
        return {"_kept": None}


def plain_product(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`, as a packed product is called."""
    return F.linear(input, weight, bias)


class Packable(nn.Module):
    """A module that multiplies by what is its `product`, so that `pack_weights` can replace it."""

    product: Callable[..., Tensor] = staticmethod(plain_product)


class PackedLinear(nn.Linear):
    """A linear layer whose product is a `PackedProduct`.

    It shares the parameters of the layer that it stands for, so state dicts, tied weights and gradients are as before.

    Args:
        plain: the layer.
    """

    def __init__(self, plain: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.weight, self.bias = plain.weight, plain.bias
        self.training = plain.training
        self._plain = (plain,)  # in a tuple, so that it is no submodule
        self.product = PackedProduct()

    def forward(self, input: Tensor) -> Tensor:
        """(…, in) to (…, out)."""
        return self.product(input, self.weight, self.bias)

    def restored(self) -> nn.Linear:
        """The layer that it stands for, with the parameters of now."""
        (plain,) = self._plain
        plain.weight, plain.bias, plain.training = self.weight, self.bias, self.training
        return plain


def pack_weights(model: Any) -> int:
    """Let a model's linear layers multiply with weights that are ordered for the processor once, not at every pass.

    For models on a CPU. Verification gains most: there a pass over a few tokens costs 1.5 to 2 times one over a single
    token otherwise. Logits change by rounding only. The ordered copies take the memory of the layers once more, from
    the first pass on. Weights that change are ordered anew; after changes through `.data` call it again.
    `unpack_weights` undoes it.

    Args:
        model: a Transformers model or any module, or a `FeatureHead`; its linear layers are replaced by `PackedLinear`.
            Layers of other classes (quantised ones), with hooks, or on other devices are left alone.

    Returns:
        The number of layers that are packed now.

    Raises:
        TypeError: if it is no module.
        ValueError: if it has no layer that can be packed; the message says which can.
    """
    module, made = _module(model), dict[nn.Linear, PackedLinear]()
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        if name and type(layer) is nn.Linear and _packable(layer):
            made[layer] = made.get(layer) or PackedLinear(layer)
            module.set_submodule(name, made[layer])
        elif isinstance(layer, PackedLinear | Packable) and _on_cpu(next(layer.parameters())):
            layer.product = PackedProduct()
    packed = sum(_is_packed(layer) for layer in module.modules())
    if not packed:
        raise ValueError(
            f"model={type(model).__name__}: it has no linear layer that can be packed; allowed: layers on a CPU in "
            f"{' or '.join(str(dtype).removeprefix('torch.') for dtype in packed_dtypes()) or 'no dtype (no oneDNN)'}"
        )
    return packed


def unpack_weights(model: Any) -> int:
    """Undo `pack_weights`: the model's own layers are back, with the parameters of now.

    Args:
        model: as for `pack_weights`.

    Returns:
        The number of layers that were packed.

    Raises:
        TypeError: if it is no module.
    """
    module = _module(model)
    packed = [(name, layer) for name, layer in module.named_modules(remove_duplicate=False) if _is_packed(layer)]
    for name, layer in packed:
        if isinstance(layer, PackedLinear):
            module.set_submodule(name, layer.restored())
        else:
            layer.__dict__.pop("product", None)
    return len({layer for _, layer in packed})


def can_be_packed(model: nn.Module) -> bool:
    """Whether `pack_weights` would change anything."""
    return any(type(layer) is nn.Linear and _packable(layer) for layer in model.modules())


def described_dtype(model: nn.Module) -> str:
    """A model's dtype, and whether its weights are packed or in int8: what the time of its passes depends on."""
    packed = ", packed" if any(map(_is_packed, model.modules())) else ""
    return f"{model.dtype}{packed}{', int8 copy' * has_int8_layers(model)}"


@cache
def packed_dtypes() -> tuple[torch.dtype, ...]:
    """Those that this processor has ordered products for: none without oneDNN, bfloat16 where it is fast."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return ()
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return ()
    halves = (torch.bfloat16,) if torch.ops.mkldnn._is_mkldnn_bf16_supported() else ()
    return (torch.float32, *halves)


def _module(model: Any) -> nn.Module:
    from .drafting import FeatureHead

    module = model.head if isinstance(model, FeatureHead) else model
    if not isinstance(module, nn.Module):
        raise TypeError(f"model={model!r}: allowed is a module or a FeatureHead")
    return module


def _packable(layer: nn.Linear) -> bool:
    hooked = layer._forward_hooks or layer._forward_pre_hooks or "forward" in layer.__dict__
    # Weights of a class of their own (sharded, quantised) are multiplied in its way.
    return not hooked and type(layer.weight) is nn.Parameter and _on_cpu(layer.weight)


def _on_cpu(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype in packed_dtypes()


def _is_packed(layer: nn.Module) -> bool:
    return isinstance(getattr(layer, "product", None), PackedProduct)


def _serves(input: Tensor, weight: Tensor) -> bool:
    learns = torch.is_grad_enabled() and (input.requires_grad or weight.requires_grad)
    fits = _on_cpu(weight) and weight.dtype == input.dtype and input.device.type == "cpu"
    return fits and not learns and input.numel() > 0 and not torch.is_autocast_enabled("cpu")
