"""A model's copy with int8 products, as a draft or companion for CPUs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..decoding.probe import take_layout
from ..decoding.traits import input_device
from ..hub.weights import weights_hash
from ..int8_linear import Int8Linear, has_int8_layers, int8_is_available
from ..packing import PackedLinear
from .shared_copy import shared_copy
from .trimmed import KeptHead
from .vocabulary import vocabulary_size

_LINEAR = (nn.Linear, PackedLinear, KeptHead)
_SAMPLE = (8, 64)  # sequences and tokens that say how large the inputs of layers get


def int8_copy(model: Any) -> Any:
    """A copy of a model whose linear layers multiply in int8, as a draft or companion on a CPU.

    A pass reads a quarter of what float32 weights take. The copy's law is near the model's, not the same, so it is
    none for a target that is to stay what it is. The model is not changed; embeddings and norms are shared with it, so
    move or retype it before, not after. The copy runs here, over random tokens, to see which input channels are large.
    Trim or cut the model first: `sv.int8_copy(sv.trim_vocabulary(draft))`.

    Args:
        model: a Transformers causal language model on an x86 CPU, in float32 or bfloat16, not quantised. Layers of
            other classes than `nn.Linear` (experts in one tensor, GPT-2's `Conv1D`), or with hooks, stay as they are.

    Returns:
        The copy. It can't be saved, moved or retyped: make it again from the model.

    Raises:
        TypeError: if it is no Transformers model.
        ValueError: for a model that is elsewhere, of another dtype, an int8 copy already, or without linear layers, or
            or one that reads the weights of such layers itself; if PyTorch has no int8 products for this processor, or
            the model can't be rolled back (so it can't draft either).
    """
    _check(model)
    copied = shared_copy(model)
    watched: dict[nn.Module, _Watched] = {}
    for name, layer in list(copied.named_modules(remove_duplicate=False)):
        if _is_taken(layer):
            watched[layer] = watched.get(layer) or _Watched(layer)
            copied.set_submodule(name, watched[layer])
    if not watched:
        raise ValueError(f"model={type(model).__name__}: it has no linear layer; allowed: models that have some")
    longest = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None) or _SAMPLE[1]
    size = (_SAMPLE[0], min(_SAMPLE[1], longest))
    tokens = torch.randint(vocabulary_size(model), size, generator=torch.Generator().manual_seed(0))
    _sample(copied, tokens)
    made = {layer: layer.in_int8() for layer in watched.values()}
    for name, layer in list(copied.named_modules(remove_duplicate=False)):
        if isinstance(layer, _Watched):
            copied.set_submodule(name, made[layer])
    copied.all_tied_weights_keys = {}  # a head that was tied has its own rows now
    copied.save_pretrained, copied._apply = _refuse_saving, _refuse_moving
    vars(copied).pop("trimmed_from", None)  # it would hold the float weights
    copied.source_sha256 = weights_hash(model)
    take_layout(copied, model)
    return copied


def can_be_int8(model: Any) -> bool:
    """Whether `int8_copy` would take a model."""
    try:
        _check(model)
    except (TypeError, ValueError):
        return False
    return any(_is_taken(layer) for layer in model.modules())


class _Watched(nn.Module):
    """A linear layer, and the largest magnitude that each of its input channels had.

    Like the layer that takes its place it has no `weight`, so a model that wants to read one is found out.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self._layer = (layer,)  # in a tuple, so that it is no submodule
        self.bias = layer.bias
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.largest: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:
        if input.numel() > 0:
            largest = input.abs().reshape(-1, input.shape[-1]).amax(0)
            self.largest = largest if self.largest is None else torch.maximum(self.largest, largest)
        output: Tensor = self._layer[0](input)
        return output

    def in_int8(self) -> Int8Linear:
        return Int8Linear(self._layer[0].weight, self.bias, self.largest)


def _sample(copied: Any, tokens: Tensor) -> None:
    """Let the watched layers see their inputs."""
    try:
        with torch.no_grad():
            copied(input_ids=tokens, use_cache=False)
    except AttributeError as error:
        if _Watched.__name__ not in str(error):
            raise
        raise ValueError(
            f"model={type(copied).__name__}: its forward reads weights of linear layers itself ({error}); allowed are "
            "models that only call them"
        ) from error


def _check(model: Any) -> None:
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"model={model!r}: allowed is a Transformers causal language model")
    if not int8_is_available():
        found = torch.backends.quantized.supported_engines
        raise ValueError(f"int8_copy: PyTorch has int8 products of {found} here; allowed: where fbgemm is among them")
    if has_int8_layers(model) or getattr(model, "is_quantized", False):
        raise ValueError(
            f"model={type(model).__name__}: it is quantised or an int8 copy already; allowed is the model that it was "
            "made from"
        )
    if input_device(model).type != "cpu" or model.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(
            f"model={type(model).__name__} on {input_device(model).type} in {str(model.dtype).removeprefix('torch.')}: "
            "allowed are models on a CPU in float32 or bfloat16"
        )


def _is_taken(layer: Any) -> bool:
    if type(layer) not in _LINEAR or layer._forward_hooks or layer._forward_pre_hooks or "forward" in layer.__dict__:
        return False
    # Weights of a class of their own (sharded, quantised) are multiplied in its way.
    return type(layer.weight) is nn.Parameter and layer.weight.device.type == "cpu" and layer.weight.is_floating_point()


def _refuse_moving(*_: Any, **__: Any) -> None:
    raise ValueError(
        "an int8 copy can't be moved or retyped: it shares embeddings with its model, and its products are the CPU's"
    )


def _refuse_saving(*_: Any, **__: Any) -> None:
    raise ValueError("an int8 copy can't be saved as a model: make it again from the model that it was made from")
