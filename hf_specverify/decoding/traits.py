"""What a model's forward takes and which attention patterns its layers have: read once per call."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class AttentionPattern:
    """Which earlier positions a layer sees: all (both None), the last `window`, or those of the same `chunk`."""

    window: int | None = None
    chunk: int | None = None


@dataclass(frozen=True)
class ModelTraits:
    """The facts about one model that a forward over a ragged batch needs.

    `patterns` maps each layer type of the configuration to its attention pattern. A model with one type takes one
    mask; a model with several takes a dict of masks.
    """

    cache_keyword: str
    takes_position_ids: bool
    takes_logits_to_keep: bool
    attention: str
    patterns: dict[str, AttentionPattern]
    unknown_layer_types: tuple[str, ...]
    vocabulary_size: int
    max_positions: int | None

    @property
    def is_flash(self) -> bool:
        """Whether the attention kernels take 2D masks only."""
        return "flash" in self.attention

    @property
    def sees_everything(self) -> bool:
        """Whether every layer is plain causal attention, without windows or chunks."""
        return not self.unknown_layer_types and set(self.patterns.values()) == {AttentionPattern()}


def input_device(model: Any) -> torch.device:
    """Where a model or feature head takes its input ids; offloaded weights are on meta, and their hook knows more."""
    if not hasattr(model, "get_input_embeddings"):  # a head, which is on one device
        return torch.device(model.device)
    device: torch.device = model.get_input_embeddings().weight.device
    if device.type == "meta":
        hooks = [getattr(part, "_hf_hook", None) for part in (model.get_input_embeddings(), model)]
        known = (getattr(hook, "execution_device", None) for hook in hooks)
        execution = next((device for device in known if device is not None), None)
        if execution is None:
            raise ValueError(
                f"{type(model).__name__} is on the device 'meta', without weights; allowed: any real device"
            )
        device = torch.device(execution)
    return device


def model_traits(model: Any) -> ModelTraits:
    """Read the traits of `model`, a Transformers causal language model."""
    config = model.config.get_text_config(decoder=True)
    parameters = inspect.signature(model.forward).parameters
    patterns, unknown = _patterns(config)
    if not getattr(model, "_supports_default_dynamic_cache", lambda: True)():
        unknown = (*unknown, "a state of its own, without a Cache")
    return ModelTraits(
        # 5.24 renamed `past_key_values` to `cache`; custom models may still have the old name.
        cache_keyword="cache" if "cache" in parameters else "past_key_values",
        takes_position_ids="position_ids" in parameters,
        takes_logits_to_keep="logits_to_keep" in parameters,
        attention=getattr(config, "_attn_implementation", None) or "eager",
        patterns=patterns,
        unknown_layer_types=unknown,
        vocabulary_size=int(config.vocab_size),
        max_positions=_learned_positions(model, config),
    )


def _patterns(config: Any) -> tuple[dict[str, AttentionPattern], tuple[str, ...]]:
    window, chunk = getattr(config, "sliding_window", None), getattr(config, "attention_chunk_size", None)
    layer_types = getattr(config, "layer_types", None)
    if layer_types is None:
        if window is not None:
            layer_types = ["sliding_attention"]
        else:
            layer_types = ["full_attention" if chunk is None else "chunked_attention"]
    known = {
        "full_attention": AttentionPattern(),
        "sliding_attention": AttentionPattern(window=window),
        "chunked_attention": AttentionPattern(chunk=chunk),
    }
    names = dict.fromkeys(layer_types)
    return {name: known[name] for name in names if name in known}, tuple(name for name in names if name not in known)


def _learned_positions(model: Any, config: Any) -> int | None:
    """Length of a learned position table, beyond which an index would be out of range; None for rotary and alibi."""
    limit = getattr(config, "max_position_embeddings", None)
    tables = {
        module.num_embeddings
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Embedding) and ("pos" in name or name.endswith("wpe"))
    }
    return limit if limit is not None and any(limit <= size for size in tables) else None
