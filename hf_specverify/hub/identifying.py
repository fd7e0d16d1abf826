"""From a model in memory to its identity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..decoding.traits import input_device
from ..drafting.vocabulary import vocabulary_size
from ..int8_linear import has_int8_layers
from . import records
from .identity import ModelIdentity
from .vocabularies import tokenizer_hashes, vocabulary_hash_of
from .weights import weights_hash


def identify(model: Any, tokenizer: Any = None, *, id: str | None = None, revision: str | None = None) -> ModelIdentity:
    """Say which model this is.

    Args:
        model: a Transformers causal language model with its weights.
        tokenizer: its tokenizer. Without one, the tokenizer.json beside its weights is read, where there is one.
        id: its name on the Hub, for a model that was loaded from a folder.
        revision: its commit there.
    """
    vocabulary, whole = (vocabulary_hash_of(model), None) if tokenizer is None else tokenizer_hashes(tokenizer)
    return ModelIdentity(
        id=id or hub_name(getattr(model.config, "_name_or_path", "") or ""),
        revision=revision if id is not None else getattr(model.config, "_commit_hash", None),
        architecture=type(model).__name__,
        quantization=quantization_of(model),
        dtype=str(model.dtype).removeprefix("torch."),
        device=input_device(model).type,
        vocab_size=vocabulary_size(model),
        vocabulary_sha256=vocabulary,
        tokenizer_sha256=whole,
        weights_sha256=weights_hash(model),
    )


def hub_name(name: str) -> str | None:
    """The name that a model was loaded by, if it is one on the Hub and not a folder's."""
    return name if records.is_hub_id(name) and not Path(name).exists() else None


def quantization_of(model: Any) -> str | None:
    """How a model's weights are quantised: bitsandbytes' form, the method's name, our own; None for dense weights."""
    if has_int8_layers(model):
        return "int8-copy"
    config = getattr(model.config, "quantization_config", None)
    if config is None or not getattr(model, "is_quantized", True):
        return None
    found = config if isinstance(config, dict) else config.to_dict()
    if found.get("load_in_4bit"):
        return str(found.get("bnb_4bit_quant_type", "fp4"))
    if found.get("load_in_8bit"):
        return "int8"
    method = found.get("quant_method", "unknown")
    return str(getattr(method, "value", method))
