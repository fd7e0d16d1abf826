"""Tiny random models of several families, and drafts near them."""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers

COMMON = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}


def _rotary(**extra: Any) -> dict[str, Any]:
    return {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.3,
        **COMMON,
        **extra,
    }


WINDOW = 6  # shorter than the prompts and answers of the tests
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _rotary(),
    "qwen2": _rotary(),
    "qwen3": _rotary(head_dim=8),
    "gemma3_text": _rotary(
        head_dim=8,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"],
        tie_word_embeddings=False,  # tied and scaled, random embeddings repeat the last token for ever
    ),
    "mistral": _rotary(sliding_window=WINDOW),
    "phi3": _rotary(sliding_window=WINDOW),
    "olmo2": _rotary(),
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "initializer_range": 0.3, **COMMON},
    "gpt_neox": _rotary(),
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.3, **COMMON},
    "gpt_neo": {
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": WINDOW,
        "max_position_embeddings": 128,
        "initializer_range": 0.3,
        **COMMON,
    },
    "cohere2": _rotary(sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"]),
    "llama4_text": _rotary(
        head_dim=8,
        attention_chunk_size=WINDOW,
        layer_types=["chunked_attention", "full_attention"],
        num_local_experts=2,
        moe_layers=[],
        intermediate_size_mlp=48,
    ),
    "mixtral": _rotary(num_local_experts=2, num_experts_per_tok=1),
    "qwen3_next": _rotary(
        head_dim=8,
        layer_types=["linear_attention", "full_attention"],
        linear_num_value_heads=2,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
    "lfm2": _rotary(layer_types=["conv", "full_attention"], block_ff_dim=48),
    "falcon_h1": _rotary(head_dim=8, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=4, mamba_expand=1),
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "initializer_range": 0.3, **COMMON},
    "rwkv": {"hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32, **COMMON},
}
REFUSED = {"mamba": "linear_attention", "rwkv": "a state of its own"}


def make_model(
    family: str = "llama", seed: int = 0, vocabulary: int = 64, attention: str = "sdpa", **extra: Any
) -> Any:
    """A random float32 model in eval mode."""
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(family, vocab_size=vocabulary, **{**FAMILIES[family], **extra})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)
    return model.eval()


def near_copy(model: Any, noise: float = 0.02, seed: int = 1) -> Any:
    """A draft for `model`: its weights with noise, so that some drafts are accepted and some are not."""
    generator = torch.Generator().manual_seed(seed)
    draft = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter += noise * torch.randn(parameter.shape, generator=generator)
    return draft


def prompts(batch: int = 3, length: int = 9, vocabulary: int = 64, seed: int = 3) -> dict[str, torch.Tensor]:
    """Left-padded random prompts of different length; the last row is the longest."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, vocabulary, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(batch - 1):
        mask[row, : 2 * (batch - 1 - row)] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}
