"""Embeddings and scoring rows of a head that are its target's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..trimmed import KeptHead
from .config import HeadConfig, default_layers
from .model import HeadModel


def check_target(config: HeadConfig, target: Any) -> None:
    """Refuse a head that was made for a target of another shape.

    Raises:
        ValueError: naming the field that differs.
    """
    text = target.config.get_text_config(decoder=True)
    hidden = config.target_hidden_size or config.hidden_size
    name = type(target).__name__
    if text.hidden_size != hidden:
        raise ValueError(
            f"target: the head reads hidden states of {hidden} numbers (hidden_size or target_hidden_size), and those "
            f"of {name} have {text.hidden_size}; allowed is the target that it was made for"
        )
    if text.vocab_size != config.vocabulary:
        raise ValueError(
            f"target: the head knows {config.vocabulary} tokens (vocab_size), and {name} {text.vocab_size}; allowed is "
            "the target that it was made for"
        )
    if max(layers_of(config, target)) > text.num_hidden_layers:
        raise ValueError(
            f"target: the head reads layer {max(layers_of(config, target))} (eagle_aux_hidden_state_layer_ids), and "
            f"{name} has {text.num_hidden_layers}; allowed is the target that it was made for"
        )


def layers_of(config: HeadConfig, target: Any) -> tuple[int, ...]:
    """The hidden states of the target that a head reads."""
    if config.target_layers is not None:
        return config.target_layers
    return default_layers(int(target.config.get_text_config(decoder=True).num_hidden_layers))


def take_from_target(head: HeadModel, target: Any) -> None:
    """Give a head the embeddings and the rows of the target's head that it has not itself.

    Embeddings of the same dtype on the same device are shared, not copied.

    Raises:
        ValueError: if the target's are of another width than the head's.
    """
    if "embed_tokens" not in head.own:
        rows = _plain(target.get_input_embeddings().weight, "embed_tokens")
        _check_width(rows.shape[1], head.config, "embed_tokens")
        head.embed_tokens = rows.detach()[: head.config.vocabulary].to(head.device, head.dtype)
    if "lm_head" not in head.own:
        scorer = target.get_output_embeddings()
        _check_width(int(scorer.in_features), head.config, "lm_head")
        with torch.no_grad():
            kept = KeptHead.of(scorer, head.draft_ids.cpu(), target.dtype).weight
        head.lm_head = kept.detach().to(head.device, head.dtype)


def _plain(weight: Any, name: str) -> Tensor:
    if not isinstance(weight, nn.Parameter) or not weight.is_floating_point() or weight.device.type == "meta":
        raise ValueError(
            f"{name}: the target's embeddings are quantised or offloaded; allowed is a head that was saved with its own"
        )
    return weight


def _check_width(width: int, config: HeadConfig, name: str) -> None:
    if width != config.hidden_size:
        raise ValueError(
            f"{name}: the head has none, and the target's are {width} wide, not hidden_size={config.hidden_size}; "
            "allowed is a file that has it"
        )
