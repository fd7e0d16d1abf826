"""Cut the trees of a batch to what pays: the best nodes of all rows, by how likely the target gets to them."""

from __future__ import annotations

import torch
from torch import Tensor

from .goodput import Latency, schedule_batch


def reach_probabilities(predicted: Tensor, parents: Tensor, exists: Tensor, depth: int) -> Tensor:
    """The probability that the target's tokens lead to each node of a tree.

    A node that was not drawn is accepted, once its parent is, with the probability p that its token has in the target's
    law, whatever verifier for deterministic drafts decides; so Σ over the chosen nodes of these probabilities is the
    expected number of accepted tokens. Siblings are different tokens: where predictions for them sum to more than 1
    they are scaled down to 1.

    Args:
        predicted: (B, N) in [0, 1], p predicted for every node's token after its parent.
        parents: (B, N) long, -1 the root; a parent comes before its children.
        exists: (B, N) bool, which nodes count.
        depth: levels of the deepest tree.

    Returns:
        (B, N) float64, 0 for what does not count. No node has more than its parent.
    """
    predicted = predicted.double() * exists
    totals = predicted.new_zeros(len(predicted), predicted.shape[1] + 1).scatter_add_(1, parents + 1, predicted)
    shares = predicted / totals.gather(1, parents + 1).clamp(min=1)
    reach = shares
    for _ in range(depth - 1):  # every turn sets one more level right
        reach = shares * torch.nn.functional.pad(reach, (1, 0), value=1.0).gather(1, parents + 1)
    return reach


def chosen_nodes(reach: Tensor, exists: Tensor, latency: Latency, weights: Tensor | None = None) -> Tensor:
    """Add, across rows, the node with the largest reach as long as the batch's goodput rises (`schedule_batch`).

    A child is reached no more often than its parent, which comes before it, so whatever the number of nodes is, with
    each of them those above it are chosen too.

    Args:
        reach: (B, N), of `reach_probabilities`.
        exists: (B, N) bool, the first nodes of each row.
        latency: seconds of a step by the number of nodes verified over all rows: 0 … B·N.
        weights: (B,) positive, what the tokens of each row are worth, B in all, from earlier steps; None means 1.

    Returns:
        (B, N) bool.

    Raises:
        ValueError: as `schedule_batch`.
    """
    ranked, order = reach.sort(dim=1, descending=True, stable=True)
    lengths = schedule_batch(ranked, latency, exists.sum(dim=1), weights).lengths
    first = torch.arange(reach.shape[1], device=reach.device) < lengths[:, None]
    return torch.zeros_like(exists).scatter_(1, order, first)
