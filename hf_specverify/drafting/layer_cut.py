"""Early exit: the first layers of a model as a model of their own."""

from __future__ import annotations

from typing import Any

from torch import nn

from .shared_copy import shared_copy


def cut_layers(model: Any, n: int) -> Any:
    """The first n decoder layers of a model with its own final norm and head, as a model of its own.

    It shares all weights with the model, which is not changed (`drafting.shared_copy`), and goes wherever a draft or
    companion goes; `save_pretrained` writes it as the smaller model that it is. Early exit without training, so the
    logits of most models are poor before the last layers; those trained for it do better (LayerSkip, 2404.16710).

    Args:
        model: a Transformers causal language model, quantised or not.
        n: layers to keep.

    Raises:
        ValueError: if n is not from 1 to the model's number of layers, or the layers can't be told.
    """
    total = number_of_layers(model)
    if type(n) is not int or not 1 <= n <= total:
        raise ValueError(f"n={n!r}: allowed are integers from 1 to {total}, the layers of {type(model).__name__}")
    if hasattr(model, "kept_ids"):
        raise ValueError("model: its vocabulary is trimmed; cut the model first, and trim what is left")
    shorter = shared_copy(model)
    for parent, name in layer_lists(shorter, total):
        parent._modules[name] = parent._modules[name][:n]
    config = shorter.config.get_text_config(decoder=True)
    for name, value in list(vars(config).items()):
        if "layer" in name and isinstance(value, list | tuple) and len(value) == total:
            setattr(config, name, value[:n])
    config.num_hidden_layers = n
    shorter.kept_layers = n
    return shorter


def number_of_layers(model: Any) -> int:
    """Decoder layers, as the configuration says."""
    return int(model.config.get_text_config(decoder=True).num_hidden_layers)


def layer_lists(model: Any, total: int) -> list[tuple[Any, str]]:
    """Where the decoder keeps its layers: the outermost lists with one entry a layer, as (parent, name)."""
    for parent in model.get_decoder().modules():
        names = [name for name, part in parent.named_children() if isinstance(part, nn.ModuleList)]
        found = [(parent, name) for name in names if len(parent._modules[name]) == total]
        if found:
            return found
    raise ValueError(f"model: {type(model).__name__} has no list of {total} layers; allowed are decoders that have one")
