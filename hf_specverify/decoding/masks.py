"""Attention masks over a ragged batch, for blocks of tokens and for trees.

Every row keeps the layout of plain left-padded generation: token j of the row (padding included) has cache slot j.
So distances between slots are distances between tokens, and windows and chunks mean what they mean in the host.
Rows differ only in how many slots are filled; what lies behind a row's own tokens is masked. The nodes of a tree stand
in slots of their own behind the committed tokens; their logical places follow from their depth.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .traits import AttentionPattern, ModelTraits


@dataclass(frozen=True)
class TreeRegion:
    """The slots of a tree, m of them; the n tokens being fed are the last of them.

    depths: (B, m) long, the logical place of every slot behind the region's first one, which has 0.
    visible: (B, n, m) bool, which slots of the region each token being fed attends to: itself and those above it.
    """

    depths: Tensor
    visible: Tensor

    @property
    def before(self) -> int:
        """Slots of the region that were fed earlier."""
        return self.visible.shape[2] - self.visible.shape[1]

    def to(self, device: torch.device) -> TreeRegion:
        """The same region on a device."""
        return TreeRegion(self.depths.to(device), self.visible.to(device))


def logical_places(starts: Tensor, width: int, region: TreeRegion | None) -> Tensor:
    """(B, width) the place of each token being fed among the tokens of its row, its first slot being starts[b]."""
    if region is None:
        return starts[:, None] + torch.arange(width, device=starts.device)
    return (starts - region.before)[:, None] + region.depths[:, region.before :]


def visible_slots(
    prompt_valid: Tensor,
    starts: Tensor,
    width: int,
    total: int,
    pattern: AttentionPattern,
    region: TreeRegion | None = None,
) -> Tensor:
    """Which cache slots each token of a block may attend to.

    Args:
        prompt_valid: (B, T) bool, False where the prompt is padding.
        starts: (B,) slot of the first token of each row's block; token i of row b stands at slot starts[b] + i.
        width: tokens in the block.
        total: slots that are read.
        pattern: window or chunk of the layer.
        region: where the tokens are nodes of a tree; None for a plain block, each token after the one before it.

    Returns:
        (B, width, total) bool. Rows of padding see themselves only through an opened mask (softmax needs something).
    """
    queries = logical_places(starts, width, region)
    slots = torch.arange(total, device=starts.device)
    keys, mask = _keys_and_order(queries, starts, slots, region)
    if pattern.window is not None:
        mask &= queries[:, :, None] - keys[:, None] < pattern.window
    if pattern.chunk is not None:
        padding = prompt_valid.shape[1] - prompt_valid.sum(1)
        mask &= _chunk(queries, padding, pattern.chunk)[:, :, None] == _chunk(keys, padding, pattern.chunk)[:, None]
    prompt = min(prompt_valid.shape[1], total)
    mask[:, :, :prompt] &= prompt_valid[:, None, :prompt]
    return mask | ~mask.any(-1, keepdim=True)


def _keys_and_order(queries: Tensor, starts: Tensor, slots: Tensor, region: TreeRegion | None) -> tuple[Tensor, Tensor]:
    """The logical place of every slot, (1 or B, total), and which slots come before each query, (B, width, total)."""
    if region is None:
        return slots[None], queries[:, :, None] >= slots
    begin = (starts - region.before)[:, None]
    columns = begin + torch.arange(region.depths.shape[1], device=starts.device)
    keys = slots.repeat(len(starts), 1).scatter_(1, columns, begin + region.depths)
    mask = (slots < begin)[:, None].repeat(1, queries.shape[1], 1)
    mask.scatter_(2, columns[:, None].expand(-1, queries.shape[1], -1), region.visible)
    return keys, mask


def _chunk(places: Tensor, padding: Tensor, size: int) -> Tensor:
    return (places - padding[:, None]) // size


def attention_mask(
    traits: ModelTraits,
    prompt_valid: Tensor,
    starts: Tensor,
    width: int,
    total: int,
    dtype: torch.dtype,
    region: TreeRegion | None = None,
) -> Tensor | dict[str, Tensor]:
    """The mask argument of one forward: (B, 1, width, total), or a dict of them by layer type.

    bool for sdpa; additive in `dtype` for eager and flex attention, which would misread bool.
    """
    masks = {
        name: _as_argument(visible_slots(prompt_valid, starts, width, total, pattern, region)[:, None], traits, dtype)
        for name, pattern in traits.patterns.items()
    }
    return next(iter(masks.values())) if len(masks) == 1 else masks


def _as_argument(mask: Tensor, traits: ModelTraits, dtype: torch.dtype) -> Tensor:
    if traits.attention == "sdpa":
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)
