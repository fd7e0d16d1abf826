"""Attention masks over a ragged batch.

Every row keeps the layout of plain left-padded generation: token j of the row (padding included) has cache slot j.
So distances between slots are distances between tokens, and windows and chunks mean what they mean in the host.
Rows differ only in how many slots are filled; what lies behind a row's own tokens is masked.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .traits import AttentionPattern, ModelTraits


def visible_slots(prompt_valid: Tensor, starts: Tensor, width: int, total: int, pattern: AttentionPattern) -> Tensor:
    """Which cache slots each token of a block may attend to.

    Args:
        prompt_valid: (B, T) bool, False where the prompt is padding.
        starts: (B,) slot of the first token of each row's block.
        width: tokens in the block; token i of row b stands at slot starts[b] + i.
        total: slots that are read.
        pattern: window or chunk of the layer.

    Returns:
        (B, width, total) bool. Rows of padding see themselves only through an opened mask (softmax needs something).
    """
    slots = torch.arange(total, device=starts.device)
    queries = starts[:, None] + torch.arange(width, device=starts.device)
    distance = queries[:, :, None] - slots
    mask = distance >= 0
    if pattern.window is not None:
        mask &= distance < pattern.window
    if pattern.chunk is not None:
        padding = prompt_valid.shape[1] - prompt_valid.sum(1)
        same = (queries - padding[:, None])[:, :, None] // pattern.chunk == (slots - padding[:, None])[:, None] // (
            pattern.chunk
        )
        mask &= same
    prompt = min(prompt_valid.shape[1], total)
    mask[:, :, :prompt] &= prompt_valid[:, None, :prompt]
    return mask | ~mask.any(-1, keepdim=True)


def attention_mask(
    traits: ModelTraits, prompt_valid: Tensor, starts: Tensor, width: int, total: int, dtype: torch.dtype
) -> Tensor | dict[str, Tensor]:
    """The mask argument of one forward: (B, 1, width, total), or a dict of them by layer type.

    bool for sdpa; additive in `dtype` for eager and flex attention, which would misread bool.
    """
    masks = {
        name: _as_argument(visible_slots(prompt_valid, starts, width, total, pattern)[:, None], traits, dtype)
        for name, pattern in traits.patterns.items()
    }
    return next(iter(masks.values())) if len(masks) == 1 else masks


def _as_argument(mask: Tensor, traits: ModelTraits, dtype: torch.dtype) -> Tensor:
    if traits.attention == "sdpa":
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)
