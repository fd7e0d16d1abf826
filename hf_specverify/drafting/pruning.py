"""Trees from which nodes were cut off."""

from __future__ import annotations

import torch
from torch import Tensor

from .tree_batch import TreeBatch


def pruned(trees: TreeBatch, kept: Tensor) -> TreeBatch:
    """Keep some nodes of each row's tree, in their order.

    There is no correction for the cut and none is needed: nothing was drawn, and verifiers for deterministic drafts are
    exact for every tree.

    Args:
        trees: the trees, without laws.
        kept: (B, N) bool, on any device; with every node those above it. Entries beyond a row's nodes are ignored.

    Raises:
        ValueError: for trees whose tokens were drawn, where keeping a node because of its token would bias the output;
            or if a node is kept without its parent.
    """
    if trees.laws is not None:
        raise ValueError(
            "trees must be deterministic to be cut (laws None): a cut that looks at drawn tokens is a bias"
        )
    if kept.shape != trees.tokens.shape:
        raise ValueError(f"kept must have the shape {tuple(trees.tokens.shape)}, got {tuple(kept.shape)}")
    if not kept.shape[1]:
        return trees
    kept = kept.to(trees.tokens.device) & trees.exists
    number = torch.nn.functional.pad(torch.where(kept, kept.long().cumsum(dim=1) - 1, -1), (1, 0), value=-1)
    above = number.gather(1, trees.parents + 1)
    orphans = kept & (above < 0) & (trees.parents >= 0)
    # One wait for the device.
    figures = torch.stack([kept.sum(dim=1), (trees.levels * kept).amax(dim=1), orphans.sum(dim=1)]).tolist()
    if any(figures[2]):
        raise ValueError("kept must hold the parent of every node that it holds")
    order = (~kept).long().sort(dim=1, stable=True).indices[:, : max(figures[0])]
    return _in_order(trees, order, kept.gather(1, order), number, tuple(figures[0]), tuple(figures[1]))


def _in_order(
    trees: TreeBatch, order: Tensor, exists: Tensor, number: Tensor, counts: tuple[int, ...], depths: tuple[int, ...]
) -> TreeBatch:
    """The nodes (B, M) `order` where they exist; `number` (B, N + 1) says what the root and each old node become."""
    size, rows = order.shape[1], torch.arange(len(order), device=order.device)[:, None, None]
    alone = torch.eye(size, dtype=torch.bool, device=order.device)
    paths = trees.paths[:, :, : max(depths)]
    return TreeBatch(
        trees.tokens.gather(1, order),
        number.gather(1, trees.parents.gather(1, order) + 1).masked_fill_(~exists, -1),
        counts,
        depths,
        number.gather(1, paths.flatten(1) + 1).view(paths.shape),
        torch.where(exists[:, :, None], trees.ancestors[rows, order[:, :, None], order[:, None]], alone),
        None,
        trees.law_of.new_full((len(order), size + 1), -1),
        None if trees.signals is None else {name: value.gather(1, order) for name, value in trees.signals.items()},
    )
