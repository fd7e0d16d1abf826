"""Tiny feature heads for the tiny models."""

from __future__ import annotations

from typing import Any

import torch

from hf_specverify.drafting.heads import HeadConfig, HeadModel
from hf_specverify.drafting.heads.config import LAYER_CONFIGS
from hf_specverify.drafting.heads.weights import take_from_target


def make_config(target: Any, /, kind: str = "llama", draft: int | None = None, **options: Any) -> HeadConfig:
    text = target.config.get_text_config(decoder=True)
    hidden = text.hidden_size
    layer = LAYER_CONFIGS[kind](
        vocab_size=text.vocab_size,
        hidden_size=hidden,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
    )
    return HeadConfig(layer, draft or text.vocab_size, **{"target_layers": (0, 1, 2), **options})


def make_head(
    target: Any, /, kind: str = "llama", draft: int | None = None, seed: int = 0, **options: Any
) -> HeadModel:
    """A random head; with `draft`, its vocabulary is so many tokens of the target's, evenly spaced."""
    config = make_config(target, kind, draft, **options)
    torch.manual_seed(seed)
    head = HeadModel(config)
    for parameter in head.parameters():
        parameter += 0.3 * torch.randn_like(parameter)
    head.draft_ids = torch.arange(config.draft_vocab_size) * (config.vocabulary // config.draft_vocab_size)
    take_from_target(head, target)
    return head.requires_grad_(False).eval()


def features(target: Any, head: HeadModel, ids: torch.Tensor) -> torch.Tensor:
    """(1, N, features) of a text without padding, from a plain forward."""
    states = target(input_ids=ids[None], output_hidden_states=True, use_cache=False).hidden_states
    return torch.cat([states[layer] for layer in head.config.target_layers], dim=-1)
