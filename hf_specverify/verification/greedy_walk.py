"""The walk of greedy multi-path block verification for all trees of a batch at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_specverify.drafting.tree_batch import TreeBatch
from hf_specverify.verification.base import acceptance_probability, wide
from hf_specverify.verification.block_rounds import ChosenPaths
from hf_specverify.verification.ranking import Rank, highest, mass_below, masses_below
from hf_specverify.verification.residual import precise


@dataclass(frozen=True, eq=False)
class GreedyWalk:
    """The highest ranked path of every row, entry i after i tokens.

    Attributes:
        nodes: (B, L + 1) long, -1 at the root; behind the end of a path its last node.
        weights: (B, L + 1) float64, w_i; 0 behind the end.
        rank: A and x, (B, L + 1) each.
    """

    nodes: Tensor
    weights: Tensor
    rank: Rank

    def as_chosen_paths(self, trees: TreeBatch, p: Tensor) -> ChosenPaths:
        """What block verification needs of these paths; q_Γ is computed for the rows that it asks for.

        Args:
            trees: the trees, with laws.
            p: (B, N + 1, V), the target's laws.
        """
        law_rows = trees.law_of.gather(1, self.nodes + 1)

        def law(rows: Tensor, lengths: Tensor, p_rows: Tensor) -> Tensor:
            q_rows = _law(trees, rows, law_rows[rows, lengths], p_rows)
            rank = Rank(self.rank.below[rows, lengths, None], self.rank.here[rows, lengths, None], self.rank.paths)
            return rank.law(precise(q_rows), masses_below(p_rows, q_rows)).to(p_rows.dtype)

        return ChosenPaths(
            weights=self.weights,
            drawn=law_rows >= 0,
            target=lambda rows, lengths: wide(p[rows, self.nodes[rows, lengths] + 1]),
            law=law,
        )


def walk_batch(trees: TreeBatch, p: Tensor) -> GreedyWalk:
    """Follow the drafted child of the highest rank, level by level; three passes over the vocabulary each.

    Args:
        trees: the trees, with laws.
        p: (B, N + 1, V), the target's laws.
    """
    count, paths, longest = trees.paths.shape
    rows = torch.arange(count, device=p.device)
    together = torch.ones(count, paths, dtype=torch.bool, device=p.device)
    nodes = [rows.new_full((count,), -1)]
    ranks = [Rank.root((count,), paths, p.device)]
    weights = [ranks[0].here]
    for level in range(longest):
        node, following = nodes[-1], trees.paths[:, :, level]
        # Paths that share the walk so far and go on: the others, and those that drew a null token, rank below.
        going = together & (following >= 0)
        p_row = wide(p[rows, node + 1])
        q_row = _law(trees, rows, trees.law_of.gather(1, node[:, None] + 1).squeeze(1), p_row)
        tokens = trees.tokens.gather(1, following.clamp(min=0))
        place = highest(p_row.gather(1, tokens) / q_row.gather(1, tokens), tokens, going)
        token, alive = tokens[rows, place], going.any(dim=1)
        p_token, q_token = precise(p_row[rows, token]), precise(q_row[rows, token])
        below = mass_below(p_row, q_row, token)
        weight = acceptance_probability(weights[-1] * p_token, ranks[-1].law(q_token, below))
        weights.append(torch.where(alive, weight, 0))
        ranks.append(ranks[-1].then(q_token, below))
        nodes.append(torch.where(alive, following[rows, place], node))
        together = going & (following == nodes[-1][:, None])
    below, here = (torch.stack(parts, dim=1) for parts in ([r.below for r in ranks], [r.here for r in ranks]))
    return GreedyWalk(torch.stack(nodes, dim=1), torch.stack(weights, dim=1), Rank(below, here, paths))


def check_tree_batch(trees: TreeBatch, p: Tensor) -> None:
    """Check the shape of p for trees with laws.

    Raises:
        ValueError: if it is not (B, N + 1, V).
    """
    assert trees.laws is not None
    rows, size = trees.tokens.shape
    expected = (rows, size + 1, trees.laws.shape[2])
    if p.shape != expected:
        raise ValueError(f"p must have the shape {expected}, one row more than the nodes, got {tuple(p.shape)}")


def _law(trees: TreeBatch, rows: Tensor, law_rows: Tensor, p_rows: Tensor) -> Tensor:
    """(m, V) a copy of the draft's laws of some rows, in the dtype of p; any law where none stands."""
    assert trees.laws is not None
    return wide(trees.laws[rows, law_rows.clamp(min=0)]).to(p_rows.dtype)
